"""Decode of cells that are repeated, along the run: what a soak is for."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from markupsafe import Markup

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import marks, sweep, table, text, thin, timeline
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.bench.report.reading import figure, letter
from vllm_spark.bench.report.timeline import Timeline, Trace

# A line of fewer points along the run shows noise.
LEAST_POINTS = 4
MOST_BUCKETS, ALL_BUCKETS = 200, 1200
# Time and decode of each repetition, by the cell without its number and the run.
Points = list[tuple[float, float]]
Repeated = dict[tuple[str, int], Points]
# Index of the style, letter and points.
Line = tuple[int, str, Points]


def draw(material: Material) -> Drawn | None:
    """Return decode along the run: the cells of a single run over each other, or a panel per cell with the runs."""
    runs = material.runs
    found = _repeated(runs)
    if not found:
        return None
    cells = list(dict.fromkeys(cell for cell, _ in found))
    seconds = max(run.seconds for run in runs)
    if len(runs) == 1 and len(cells) <= marks.COUNT:
        lines = [(n, ascii_lowercase[n], found[cell, 0]) for n, cell in enumerate(cells)]
        legend = tuple((marks.swatch(n), ascii_lowercase[n], text.plain(cell)) for n, cell in enumerate(cells))
        return Drawn((("", _panel("Decode", seconds, lines)),), legend, wide=True)
    panels = []
    for cell in cells:
        lines = [(run, letter(run), points) for (name, run), points in found.items() if name == cell]
        panels.append((text.plain(cell), _panel(text.plain(cell), seconds, lines, len(cells))))
    return Drawn(tuple(panels), sweep.run_legend(runs, {run for _, run in found}), wide=True)


def _panel(title: str, seconds: float, lines: Sequence[Line], panels: int = 1) -> Markup:
    buckets = min(MOST_BUCKETS, ALL_BUCKETS // (panels * len(lines)))
    drawings = []
    for size, count in ((timeline.WIDE, buckets), (timeline.NARROW, buckets // 2)):
        traces = tuple(Trace(index, key, tuple(thin.thin(points, count))) for index, key, points in lines)
        drawings.append(timeline.draw(Timeline(title, "decode, tok/s", seconds, traces, ()), size))
    return Markup("").join(drawings)


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
