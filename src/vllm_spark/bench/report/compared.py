"""The runs against the oldest one: a ratio with its band and a judgement for each figure, and three figures above the
fold: what most readers come for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from vllm_spark.bench import compare
from vllm_spark.bench.compare import Row
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import table, text
from vllm_spark.bench.report.text import figure, letter
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import Cell

# The same in a sentence, by the class of the style sheet.
SUMMARY = {"worse": "worse", "better": "better", "same": "the same", "not-measured": "not judged", "": "not judged"}
# The rows of each later run by cell and metric.
Rows = Sequence[Mapping[tuple[str, str], Row]]
# A judgement in the words of the page. A figure without one is not judged.
WORDS = {"worse": "▼ worse", "better": "▲ better", "same": "same", "not measured": "not judged"}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A later run beside the oldest: the change, the judgement with its band, and a class of the style sheet."""

    change: str
    judgement: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A leading figure of a cell: its value in each run, and the ratio of each later run. None: not measured."""

    number: int
    cell: str
    figure: str
    unit: str
    values: tuple[str | None, ...]
    ratios: tuple[Ratio | None, ...]


def of_runs(runs: Sequence[Evidence]) -> Rows:
    """Return the comparison of each later run with the oldest one."""
    return [{(row.cell, row.metric): row for row in compare.compare(runs[:1], run).rows} for run in runs[1:]]


def ratio(row: Row | None) -> Ratio | None:
    """Return a row as text; None for one without a ratio. A figure that its cell is not measured for is not judged."""
    if row is None or row.ratio is None or row.ratio <= 0:
        return None
    if row.band is None:
        return Ratio(text.change(row.ratio))
    judgement = f"{WORDS.get(row.judgement, row.judgement)}, band ±{text.percent(row.band)}"
    return Ratio(text.change(row.ratio), judgement, row.judgement.replace(" ", "-"))


def lines(runs: Sequence[Evidence], found: Rows, kept: Iterable[str]) -> list[Line]:
    """Return a line per leading figure of the cells with these ids that at least two runs have measured."""
    order, made = table.numbers(runs), []
    for id_ in kept:
        cells = [run.cells[id_] for run in runs if id_ in run.cells]
        for metric in leading_metrics(cells[0]["cell"]):
            known = [figure(run.cells[id_], metric) if id_ in run.cells else None for run in runs]
            values = tuple(table.number(one["median"], metric) if one else None for one in known)
            of_line = tuple(ratio(rows.get((id_, metric))) for rows in found)
            if any(of_line):
                made.append(
                    Line(order[id_], id_, table.COLUMNS.get(metric, metric), table.unit(metric), values, of_line)
                )
    return made


def summary(runs: Sequence[Evidence], all_lines: Sequence[Line]) -> list[str]:
    """Return a sentence for each later run: `Of 9 figures 2 are worse and 7 the same.`"""
    sentences = []
    for n in range(len(runs) - 1):
        styles = Counter(one.style for line in all_lines if (one := line.ratios[n]))
        if styles:
            parts = [f"{styles[style]} {words}" for style, words in SUMMARY.items() if styles[style]]
            sentences.append(f"{letter(n + 1)} against {letter(0)}, {styles.total()} figures: {', '.join(parts)}.")
    return sentences


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
            change = ratio(rows[-1].get((id_, metric))) if rows else None
            newest = figure(runs[-1].cells[id_], "queue") if metric == "total" and id_ in runs[-1].cells else None
            queue = f"{table.number(newest['median'], 'queue')} with the time that prompts take" if newest else ""
            note = "; ".join(filter(None, (queue, expected.get((id_, metric), ""))))
            yield Tile(title, table.unit(metric), tuple(values), change, id_, note)


def _best(runs: Sequence[Evidence], metric: str, suits: Callable[[Cell], bool]) -> str:
    """Return the id of the cell that most runs have measured: of the unchanged server, measured for the figure, of the
    most streams, and the first one. It is empty without one."""
    found = {}
    for id_ in dict.fromkeys(id_ for run in runs for id_ in run.cells):
        cells = [run.cells[id_] for run in runs if id_ in run.cells and figure(run.cells[id_], metric)]
        if cells and suits(cell := cells[0]["cell"]):
            found[id_] = (len(cells), not cell["server"], metric in leading_metrics(cell), cell["streams"])
    return max(found, key=lambda id_: found[id_], default="")
