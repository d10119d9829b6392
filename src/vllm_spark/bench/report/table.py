"""The table of the cells with every figure, and the warnings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.bench import compare
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import text
from vllm_spark.bench.report.text import figure, is_number, letter
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import UNITS, CellRecord

# Metrics with one number per cell, and the head of their column. The plots show the others.
COLUMNS = {
    "decode": "decode",
    "total": "all streams",
    "queue": "with prompts",
    "step": "step",
    "tokens_per_step": "tokens per step",
    "acceptance": "accepted",
    "prefill": "prefill",
    "first_token": "first token",
    "first_chunk": "first chunk",
    "first_answer": "first answer",
    "longest_gap": "longest gap",
    "gap_p99": "99 % of gaps",
    "request": "request",
    "documents": "documents",
    "read": "tokens read",
    "latency": "latency",
    "latency_p95": "95 % of latency",
    "start": "start",
    "memory": "memory",
}
# Columns that differ from another one by less than this share say the same.
ALIKE = 0.02
# Results with every value, results of a soak, and rows if most cells have faults: more would make the page too large.
MAX_VALUES, MAX_RESULTS, MAX_ROWS = 150, 200, 250
# Values of a cell that are listed, and cells that a warning names by their number.
MAX_LISTED, MAX_NAMED = 20, 8


@dataclass(frozen=True, slots=True)
class Value:
    """A figure as text: the median, and below it the values of its runs. `leads`: a leading figure."""

    median: str
    below: str = ""
    leads: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A cell in one run. `values` is empty unless it was measured; `faults` are the reasons of one that was not."""

    letter: str
    state: str
    runs: int
    values: tuple[Value | None, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A cell with its number in the table, its id, and its result in each run that has it."""

    number: int
    id: str
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Metric, head and unit of the columns that are shown. `folded`: heads of those that say the same as one shown."""

    shown: tuple[tuple[str, str, str], ...]
    folded: Mapping[str, str]


def unit(metric: str) -> str:
    """Return the unit of a metric as the report shows it."""
    return "%" if UNITS[metric] == "1" else UNITS[metric]


def number(value: float, metric: str) -> str:
    """Return a value of a metric as text, in the unit of the report."""
    return text.number(100 * value if UNITS[metric] == "1" else value)


def columns(runs: Sequence[Evidence]) -> Columns:
    """Return the columns that have a figure, without those that are equal to an earlier one in every cell."""
    cells = {(n, id_): cell for n, run in enumerate(runs) for id_, cell in run.cells.items()}
    shown: dict[str, dict[tuple[int, str], float]] = {}
    folded: dict[str, str] = {}
    for metric, head in COLUMNS.items():
        found = {at: known["median"] for at, cell in cells.items() if (known := figure(cell, metric))}
        equal = [one for one in shown if UNITS[one] == UNITS[metric] and _alike(shown[one], found)]
        if found and equal:
            folded[head] = COLUMNS[equal[0]]
        elif found:
            shown[metric] = found
    return Columns(tuple((metric, COLUMNS[metric], unit(metric)) for metric in shown), folded)


def _alike(one: Mapping[tuple[int, str], float], other: Mapping[tuple[int, str], float]) -> bool:
    return one.keys() >= other.keys() and all(abs(one[at] - value) <= ALIKE * abs(value) for at, value in other.items())


def numbers(runs: Sequence[Evidence]) -> dict[str, int]:
    """Return the number of each cell by its id, in the order of the first run that has it."""
    return {id_: number for number, id_ in enumerate(dict.fromkeys(id_ for run in runs for id_ in run.cells), 1)}


def kind(id_: str) -> str:
    """Return the id of a cell without the number of its repetition: `chat p512 o512 d0 s1` of `… #3`."""
    return re.sub(r" #\d+$", "", id_)


def rows(runs: Sequence[Evidence], metrics: Sequence[str]) -> list[ReportRow]:
    """Return a row per cell, in the order of their numbers. Of a long soak only every n-th repetition of each cell has
    one, and those with a fault: they show its course."""
    results = sum(len(run.cells) for run in runs)
    every, seen, kept = -(-results // MAX_RESULTS) or 1, Counter[str](), []
    for id_, number in numbers(runs).items():
        found = [(n, run.cells[id_]) for n, run in enumerate(runs) if id_ in run.cells]
        if seen[kind(id_)] % every == 0 or any(cell["faults"] for _, cell in found):
            made = (_result(letter(n), cell, metrics, results <= MAX_VALUES) for n, cell in found)
            kept.append(ReportRow(number, id_, tuple(made)))
        seen[kind(id_)] += 1
    return kept[:MAX_ROWS]


def _result(name: str, cell: CellRecord, metrics: Iterable[str], every: bool) -> Result:
    measured = cell["state"] == "measured"
    values = tuple(_value(cell, metric, every) for metric in metrics) if measured else ()
    faults = tuple(f"{text.plain(fault['id'])}: {text.plain(fault['what'])}" for fault in cell["faults"])
    return Result(name, cell["state"], cell["runs"], values, faults)


def _value(cell: CellRecord, metric: str, every: bool) -> Value | None:
    known = figure(cell, metric)
    if not known:
        return None
    noisy = compare.too_noisy(known)
    spread = "" if known["spread"] is None else f"spread {text.percent(known['spread'])}"
    values = [number(value, metric) for value in known["values"] if is_number(value)] if every else []
    below = f"all {values[0]}" if len({*values}) == 1 else " ".join(values[:MAX_LISTED])
    if noisy:
        below = f"{below} too noisy, {spread}".strip()
    elif len(values) < 2:  # noqa: PLR2004  a single value is the median
        below = "" if every else spread
    return Value(number(known["median"], metric), below, metric in leading_metrics(cell["cell"]) and not noisy)


def warnings(runs: Sequence[Evidence]) -> list[tuple[str, str, str]]:
    """Return each fault of measured cells once: its name, the cells that have it, and what it says of the first."""
    order, texts = numbers(runs), dict[str, list[str]]()
    where: dict[str, dict[int, list[int]]] = {}
    for index, run in enumerate(runs):
        for id_, cell in run.cells.items():
            for fault in cell["faults"] if cell["state"] == "measured" else ():
                where.setdefault(fault["id"], {}).setdefault(index, []).append(order[id_])
                texts.setdefault(fault["id"], []).append(fault["what"])
    return [
        (
            text.plain(fault),
            "; ".join(_where(index, cells, runs) for index, cells in where[fault].items()),
            ("for example " if len({*whats}) > 1 else "") + text.plain(whats[0]),
        )
        for fault, whats in texts.items()
    ]


def _where(index: int, cells: Sequence[int], runs: Sequence[Evidence]) -> str:
    measured = sum(cell["state"] == "measured" for cell in runs[index].cells.values())
    named = f" ({', '.join(map(str, cells))})" if len(cells) <= MAX_NAMED else ""
    return f"{len(cells)} of {measured} cells{f' of {letter(index)}' if len(runs) > 1 else ''}{named}"
