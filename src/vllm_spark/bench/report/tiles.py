"""Three figures above the fold: what most readers come for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import compared, table, text
from vllm_spark.bench.report.compared import Ratio, Rows
from vllm_spark.bench.report.reading import figure, is_number, letter
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import Cell

COUNT = 3
# How well a cell shows a figure; None: not at all.
Suits = Callable[[Cell], float | None]


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in each run, the ratio of the newest to the oldest, and where it was measured. `id`: its cell."""

    title: str
    unit: str
    values: tuple[str, ...]
    ratio: Ratio | None = None
    id: str = ""
    note: str = ""


def _alone(cell: Cell) -> float | None:
    return 1.0 if leading_metrics(cell)[0] == "decode" else None


def _streams(cell: Cell) -> float | None:
    return float(cell["streams"]) if cell["streams"] > 1 else None


def _first(cell: Cell) -> float | None:
    return float("first_token" in leading_metrics(cell)) if cell["streams"] == 1 else None


def _any(_: Cell) -> float | None:
    return 0.0


# The first ones that the runs have are shown.
FIGURES: Sequence[tuple[str, str, Suits]] = (
    ("Decode of one stream", "decode", _alone),
    ("Time to first token", "first_token", _first),
    ("All streams together", "total", _streams),
    ("Start until the first token", "start", _any),
    ("Prefill", "prefill", _any),
)


def tiles(runs: Sequence[Evidence], rows: Rows, expected: Mapping[tuple[str, str], str]) -> list[Tile]:
    """Return at most three tiles. `expected` has the forecast of a figure by cell and metric, in words."""
    return [*islice(_tiles(runs, rows, expected), COUNT)]


def _tiles(runs: Sequence[Evidence], rows: Rows, expected: Mapping[tuple[str, str], str]) -> Iterator[Tile]:
    for title, metric, suits in FIGURES:
        if id_ := _best(runs, metric, suits):
            known = [figure(run.cells[id_], metric) if id_ in run.cells else None for run in runs]
            values = _shown([table.number(one["median"], metric) if one else "—" for one in known])
            ratio = compared.ratio(rows[-1].get((id_, metric))) if rows else None
            yield Tile(title, table.unit(metric), values, ratio, id_, expected.get((id_, metric), ""))
    peaks = [max(_memory(run), default=None) for run in runs]
    if any(peak is not None for peak in peaks):
        values = _shown(["—" if peak is None else text.number(peak) for peak in peaks])
        yield Tile("Memory in use, at most", "GiB", values, note="of one host")


def _shown(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of one or two runs; of more those that are known, with the letter of their run."""
    if len(values) <= 2:  # noqa: PLR2004  they need no letters
        return tuple(values)
    return tuple(f"{letter(n)} {value}" for n, value in enumerate(values) if value != "—")


def _best(runs: Sequence[Evidence], metric: str, suits: Suits) -> str:
    """Return the id of the cell that most runs have measured, and that suits best; empty without one."""
    best, rank = "", (0, 0.0, -1.0)
    for id_ in dict.fromkeys(id_ for run in runs for id_ in run.cells):
        cells = [run.cells[id_] for run in runs if id_ in run.cells and figure(run.cells[id_], metric)]
        fit = suits(cells[0]["cell"]) if cells else None
        if fit is not None and (found := (len(cells), float(not cells[0]["cell"]["server"]), fit)) > rank:
            best, rank = id_, found
    return best


def _memory(run: Evidence) -> Iterator[float]:
    samples = (sample for cell in run.cells.values() for host in cell["samples"].values() for sample in host)
    return (value for sample in samples if is_number(value := sample.get("memory_gib")))
