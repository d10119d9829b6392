"""Three figures above the fold: what most readers come for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import compared, table
from vllm_spark.bench.report.compared import Ratio, Rows
from vllm_spark.bench.report.reading import figure, letter
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import Cell

COUNT = 3
# Title, metric, and whether a cell can show it. The first ones that the runs have are shown.
FIGURES: Sequence[tuple[str, str, Callable[[Cell], bool]]] = (
    ("Decode of one stream", "decode", lambda cell: leading_metrics(cell)[0] == "decode"),
    ("Time to first token", "first_token", lambda cell: cell["streams"] == 1),
    ("All streams together", "total", lambda cell: cell["streams"] > 1),
    ("Start until the first token", "start", lambda _: True),
    ("Prefill", "prefill", lambda _: True),
)


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in each run, the ratio of the newest to the oldest, and where it was measured. `id`: its cell."""

    title: str
    unit: str
    values: tuple[str, ...]
    ratio: Ratio | None
    id: str
    note: str


def tiles(runs: Sequence[Evidence], rows: Rows, expected: Mapping[tuple[str, str], str]) -> list[Tile]:
    """Return at most three tiles. `expected` has the forecast of a figure by cell and metric, in words."""
    return [*islice(_tiles(runs, rows, expected), COUNT)]


def _tiles(runs: Sequence[Evidence], rows: Rows, expected: Mapping[tuple[str, str], str]) -> Iterator[Tile]:
    for title, metric, suits in FIGURES:
        if id_ := _best(runs, metric, suits):
            known = [figure(run.cells[id_], metric) if id_ in run.cells else None for run in runs]
            values = [table.number(one["median"], metric) if one else "—" for one in known]
            if len(runs) > 2:  # noqa: PLR2004  two need no letters
                values = [f"{letter(n)} {value}" for n, value in enumerate(values) if known[n]]
            ratio = compared.ratio(rows[-1].get((id_, metric))) if rows else None
            newest = figure(runs[-1].cells[id_], "queue") if metric == "total" and id_ in runs[-1].cells else None
            queue = f"{table.number(newest['median'], 'queue')} with the time that prompts take" if newest else ""
            note = "; ".join(filter(None, (queue, expected.get((id_, metric), ""))))
            yield Tile(title, table.unit(metric), tuple(values), ratio, id_, note)


def _best(runs: Sequence[Evidence], metric: str, suits: Callable[[Cell], bool]) -> str:
    """Return the id of the cell that most runs have measured: of the unchanged server, measured for the figure, of the
    most streams, and the first one. It is empty without one."""
    found = {}
    for id_ in dict.fromkeys(id_ for run in runs for id_ in run.cells):
        cells = [run.cells[id_] for run in runs if id_ in run.cells and figure(run.cells[id_], metric)]
        if cells and suits(cell := cells[0]["cell"]):
            found[id_] = (len(cells), not cell["server"], metric in leading_metrics(cell), cell["streams"])
    return max(found, key=lambda id_: found[id_], default="")
