"""Decode of cells that are repeated, along the run: what a soak is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import marks, names, sweep, table, text, thin, timeline
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.bench.report.reading import figure, letter
from vllm_spark.bench.report.timeline import Row, Trace

# A line of fewer points along the run shows noise.
LEAST_POINTS = 4
MOST_BUCKETS, ALL_BUCKETS = 200, 1200
UNIT = "tok/s"
# Time and decode of each repetition, by the cell without its number and the run.
Points = list[tuple[float, float]]
Repeated = dict[tuple[str, int], Points]
# Index of the style, letter and points.
Line = tuple[int, str, Points]


def draw(material: Material) -> Drawn | None:
    """Return decode along the run: the cells of a single run over each other, or a row per cell with the runs."""
    runs = material.runs
    found = _repeated(runs)
    if not found:
        return None
    cells = list(dict.fromkeys(cell for cell, _ in found))
    known = names.of_cells([record["cell"] for run in runs for record in run.cells.values()])
    named = {cell: known.get(cell, text.plain(cell)) for cell in cells}
    seconds = max(run.seconds for run in runs)
    if len(runs) == 1 and len(cells) <= marks.COUNT:
        lines = {"Decode": [(n, ascii_lowercase[n], found[cell, 0]) for n, cell in enumerate(cells)]}
        legend = tuple((marks.swatch(n), ascii_lowercase[n], named[cell]) for n, cell in enumerate(cells))
    else:
        lines = {
            named[cell]: [(run, letter(run), points) for (name, run), points in found.items() if name == cell]
            for cell in cells
        }
        legend = sweep.run_legend(runs, {run for _, run in found})
    buckets = min(MOST_BUCKETS, ALL_BUCKETS // len(found))
    rows = [_rows(lines, count) for count in (buckets, buckets // 2)]
    return Drawn((("", timeline.both("Decode", rows, (), seconds)),), legend, wide=True)


def _rows(lines: Mapping[str, Sequence[Line]], count: int) -> list[Row]:
    return [
        Row(title, UNIT, tuple(Trace(index, key, tuple(thin.thin(points, count))) for index, key, points in of_row))
        for title, of_row in lines.items()
    ]


def _repeated(runs: Sequence[Evidence]) -> Repeated:
    found: Repeated = {}
    for index, run in enumerate(runs):
        for record in run.cells.values():
            if known := figure(record, "decode"):
                middle = record["started"] + record["seconds"] / 2
                found.setdefault((table.kind(record["cell"]["id"]), index), []).append((middle, known["median"]))
    return {key: points for key, points in found.items() if len(points) >= LEAST_POINTS}


PLOT = Plot(
    id="along",
    order=75,
    title="Decode along the run",
    caption="Tokens per second of each repetition of a cell. A line that falls is heat, a leak of memory "
    "or another client; the hosts below show which. Where repetitions are drawn together, the line is their mean "
    "and the band their extremes.",
    draw=draw,
)
