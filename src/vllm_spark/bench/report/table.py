"""The tables of the report: what was measured, and the cells with their figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_spark.bench import compare
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import text
from vllm_spark.bench.report.reading import figure, is_number, letter
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import UNITS, CellRecord

# Metrics with one number per cell, and the head of their column. The plots show the others.
COLUMNS = {
    "decode": "decode",
    "total": "all streams",
    "step": "step",
    "tokens_per_step": "tokens per step",
    "acceptance": "accepted",
    "prefill": "prefill",
    "first_chunk": "first chunk",
    "first_token": "first token",
    "first_answer": "first answer",
    "longest_gap": "longest gap",
    "gap_p99": "99 % of gaps",
    "request": "request",
    "start": "start",
    "memory": "memory",
}
# More cells would make the page too large with every value in a tooltip.
MAX_TOOLTIPS = 150
# Results in the table. A soak of hours has more; a row per few minutes shows its course.
MAX_RESULTS = 200
# Rows at most, if most cells have faults.
MAX_ROWS = 250


@dataclass(frozen=True, slots=True)
class Value:
    """A figure as text: the median, the spread, and a tooltip with every value. `leads`: a leading figure."""

    median: str
    spread: str = ""
    title: str = ""
    leads: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A cell in one run. `values` is empty unless it was measured; `faults` are its reasons or warnings."""

    letter: str
    state: str
    runs: int
    values: tuple[Value | None, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A cell with its number in the table, its name, and its result in each run that has it."""

    number: int
    name: str
    results: tuple[Result, ...]

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Return the letter of the run and the words of each fault of a measured cell."""
        measured = [result for result in self.results if result.state == "measured"]
        return [(result.letter, words) for result in measured for words in result.faults]


def columns(runs: Sequence[Evidence]) -> list[tuple[str, str, str]]:
    """Return metric, head and unit of the columns that have a figure."""
    known = {metric for run in runs for cell in run.cells.values() for metric in COLUMNS if figure(cell, metric)}
    return [
        (metric, head, "%" if UNITS[metric] == "1" else UNITS[metric])
        for metric, head in COLUMNS.items()
        if metric in known
    ]


def numbers(runs: Sequence[Evidence]) -> dict[str, int]:
    """Return the number of each cell by its id, in the order of the first run that has it."""
    ids = dict.fromkeys(cell["cell"]["id"] for run in runs for cell in run.cells.values())
    return {id_: number for number, id_ in enumerate(ids, 1)}


def rows(runs: Sequence[Evidence]) -> list[Row]:
    """Return a row per cell, in the order of their numbers."""
    by_run = [{cell["cell"]["id"]: cell for cell in run.cells.values()} for run in runs]
    metrics = [metric for metric, _, _ in columns(runs)]
    tooltips = sum(map(len, by_run)) <= MAX_TOOLTIPS
    all_rows = [
        Row(
            number,
            text.plain(id_),
            tuple(_result(n, cells[id_], metrics, tooltips) for n, cells in enumerate(by_run) if id_ in cells),
        )
        for id_, number in numbers(runs).items()
    ]
    return _thinned(all_rows)


def kind(id_: str) -> str:
    """Return the id of a cell without the number of its repetition: `chat p512 o512 d0 s1` of `… #3`."""
    return re.sub(r" #\d+$", "", id_)


def _thinned(all_rows: list[Row]) -> list[Row]:
    """Return all rows, or of a long soak those with a fault and every n-th repetition of each cell."""
    every = -(-sum(len(row.results) for row in all_rows) // MAX_RESULTS) or 1
    seen: Counter[str] = Counter()
    kept = []
    for row in all_rows:
        if seen[kind(row.name)] % every == 0 or any(result.faults for result in row.results):
            kept.append(row)
        seen[kind(row.name)] += 1
    return kept[:MAX_ROWS]


def _result(index: int, cell: CellRecord, metrics: Iterable[str], tooltips: bool) -> Result:
    measured = cell["state"] == "measured"
    values = tuple(_value(cell, metric, tooltips) for metric in metrics) if measured else ()
    faults = tuple(f"{text.plain(fault['id'])}: {text.plain(fault['what'])}" for fault in cell["faults"])
    return Result(letter(index), cell["state"], cell["runs"], values, faults)


def _value(cell: CellRecord, metric: str, tooltips: bool) -> Value | None:
    known = figure(cell, metric)
    if not known:
        return None
    factor = 100 if known["unit"] == "1" else 1
    noisy = compare.too_noisy(known)
    spread = "" if known["spread"] is None else f"±{text.percent(known['spread'])}{', too noisy' * noisy}"
    every = ", ".join(text.number(factor * value) for value in known["values"] if is_number(value))
    leads = metric in leading_metrics(cell["cell"]) and not noisy
    return Value(text.number(factor * known["median"]), spread, every if tooltips else "", leads)


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the table of what was measured: a value per run, and whether they differ."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Return True if the runs have different values."""
        return len({*self.values}) > 1


def facts(runs: Sequence[Evidence]) -> list[Fact]:
    """Return the facts of the runs in the order of the records. An unknown one is shown as unknown."""
    found = [_facts(run) for run in runs]
    names = dict.fromkeys(name for facts_ in found for name in facts_)
    return [Fact(text.plain(n), tuple(text.plain(facts_.get(n) or "unknown") for facts_ in found)) for n in names]


def _facts(run: Evidence) -> dict[str, str]:
    record = run.run
    ended = "complete" if run.end else "interrupted: no record of an end"
    facts_: dict[str, str] = {
        "run": record["id"],
        "started": record["started"],
        "duration": text.duration(run.seconds),
        "end": ended,
        "profile": str(record["profile"].get("name", "")),
    }
    facts_ |= {name.replace("_", " "): str(value) for name, value in record["subject"].items()}
    facts_ |= {name: str(value) for name, value in record["key"].items()}
    for host, known in record["host"].items():
        facts_ |= {f"{name.replace('_', ' ')}, {host}": value for name, value in known.items()}
    return facts_
