"""The tables of the report: what was measured, and the cells with every figure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "first_token": "first token",
    "first_chunk": "first chunk",
    "first_answer": "first answer",
    "longest_gap": "longest gap",
    "gap_p99": "99 % of gaps",
    "request": "request",
    "start": "start",
    "memory": "memory",
}
# Columns that differ from another one by less than this share say the same.
ALIKE = 0.02
# More cells would make the page too large with every value of every run.
MAX_VALUES = 150
# Results in the table. A soak of hours has more; a row per few minutes shows its course.
MAX_RESULTS = 200
# Values of a cell that are listed.
MAX_LISTED = 20
# Cells that a warning names by their number.
MAX_NAMED = 8
# Rows at most, if most cells have faults.
MAX_ROWS = 250


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
class Row:
    """A cell with its number in the table, its id, and its result in each run that has it."""

    number: int
    id: str
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Metric, head and unit of the columns that are shown. `folded`: heads of those that say the same as one shown."""

    shown: tuple[tuple[str, str, str], ...]
    folded: Mapping[str, str]


def head(metric: str) -> str:
    """Return the name of a metric for people."""
    return COLUMNS.get(metric, metric.replace("_", " "))


def unit(metric: str) -> str:
    """Return the unit of a metric as the report shows it."""
    return "%" if UNITS[metric] == "1" else UNITS[metric]


def number(value: float, metric: str) -> str:
    """Return a value of a metric as text, in the unit of the report."""
    return text.number(100 * value if UNITS[metric] == "1" else value)


def columns(runs: Sequence[Evidence]) -> Columns:
    """Return the columns that have a figure, without those that are equal to an earlier one in every cell."""
    found: dict[str, dict[tuple[int, str], float]] = {}
    for index, run in enumerate(runs):
        for id_, cell in run.cells.items():
            for metric in COLUMNS:
                if known := figure(cell, metric):
                    found.setdefault(metric, {})[index, id_] = known["median"]
    folded: dict[str, str] = {}
    shown: list[str] = []
    for metric in filter(found.__contains__, COLUMNS):
        equal = next((one for one in shown if UNITS[one] == UNITS[metric] and _alike(found[one], found[metric])), None)
        if equal:
            folded[COLUMNS[metric]] = COLUMNS[equal]
        else:
            shown.append(metric)
    return Columns(tuple((metric, COLUMNS[metric], unit(metric)) for metric in shown), folded)


def _alike(one: Mapping[tuple[int, str], float], other: Mapping[tuple[int, str], float]) -> bool:
    return one.keys() >= other.keys() and all(abs(one[at] - value) <= ALIKE * abs(value) for at, value in other.items())


def numbers(runs: Sequence[Evidence]) -> dict[str, int]:
    """Return the number of each cell by its id, in the order of the first run that has it."""
    ids = dict.fromkeys(cell["cell"]["id"] for run in runs for cell in run.cells.values())
    return {id_: number for number, id_ in enumerate(ids, 1)}


def rows(runs: Sequence[Evidence], metrics: Sequence[str]) -> list[Row]:
    """Return a row per cell, in the order of their numbers."""
    by_run = [{cell["cell"]["id"]: cell for cell in run.cells.values()} for run in runs]
    every = sum(map(len, by_run)) <= MAX_VALUES
    all_rows = [
        Row(
            number,
            id_,
            tuple(_result(n, cells[id_], metrics, every) for n, cells in enumerate(by_run) if id_ in cells),
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
        if seen[kind(row.id)] % every == 0 or any(result.faults for result in row.results):
            kept.append(row)
        seen[kind(row.id)] += 1
    return kept[:MAX_ROWS]


def _result(index: int, cell: CellRecord, metrics: Iterable[str], every: bool) -> Result:
    measured = cell["state"] == "measured"
    values = tuple(_value(cell, metric, every) for metric in metrics) if measured else ()
    faults = tuple(f"{text.plain(fault['id'])}: {text.plain(fault['what'])}" for fault in cell["faults"])
    return Result(letter(index), cell["state"], cell["runs"], values, faults)


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
    leads = metric in leading_metrics(cell["cell"]) and not noisy
    return Value(number(known["median"], metric), below, leads)


@dataclass(frozen=True, slots=True)
class Warned:
    """A fault of measured cells, told once: where it is, and what it says in the first of them.

    `varies`: it says something else in another one."""

    id: str
    where: str
    what: str
    varies: bool


def warnings(runs: Sequence[Evidence]) -> list[Warned]:
    """Return each warning of measured cells once, with its count."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for index, run in enumerate(runs):
        for id_, cell in run.cells.items():
            for fault in cell["faults"] if cell["state"] == "measured" else ():
                found.setdefault(fault["id"], {}).setdefault(index, {})[id_] = fault["what"]
    return [_warned(fault, by_run, runs) for fault, by_run in found.items()]


def _warned(fault: str, by_run: Mapping[int, Mapping[str, str]], runs: Sequence[Evidence]) -> Warned:
    order = numbers(runs)
    said = list(dict.fromkeys(what for cells in by_run.values() for what in cells.values()))
    where = _where(runs, {index: [order[id_] for id_ in cells] for index, cells in by_run.items()})
    return Warned(text.plain(fault), where, text.plain(said[0]), len(said) > 1)


def _where(runs: Sequence[Evidence], cells: Mapping[int, Sequence[int]]) -> str:
    """Return the number of cells of each run that have a fault; runs with the same cells are told together."""
    told: dict[str, list[str]] = {}
    for index, numbers_ in cells.items():
        measured = sum(cell["state"] == "measured" for cell in runs[index].cells.values())
        named = f" ({', '.join(map(str, numbers_))})" if len(numbers_) <= MAX_NAMED else ""
        words = f"all {measured} cells" if len(numbers_) == measured else f"{len(numbers_)} of {measured} cells{named}"
        told.setdefault(words, []).append(letter(index))
    of_runs = len(runs) > 1
    return "; ".join(f"{words} of {' and of '.join(letters)}" if of_runs else words for words, letters in told.items())


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the table of what was measured. It has one value if that is the same in all runs."""

    name: str
    values: tuple[str, ...]


def facts(runs: Sequence[Evidence]) -> list[Fact]:
    """Return the facts of the runs, those that differ first. One that is unknown in every run is left out."""
    found = [_facts(run) for run in runs]
    names = dict.fromkeys(name for facts_ in found for name in facts_)
    all_ = [Fact(text.plain(n), _folded([text.plain(facts_.get(n) or "unknown") for facts_ in found])) for n in names]
    return sorted((fact for fact in all_ if fact.values != ("unknown",)), key=lambda fact: len(fact.values) == 1)


def _folded(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(values) if len({*values}) > 1 else tuple(values[:1])


def _facts(run: Evidence) -> dict[str, str]:
    record = run.run
    return dict(_told(run)) | {
        f"{name.replace('_', ' ')}, {host}": value
        for host, known in record["host"].items()
        for name, value in known.items()
    }


def _told(run: Evidence) -> Iterator[tuple[str, str]]:
    record = run.run
    yield "run", record["id"]
    yield "started", record["started"]
    yield "duration", text.duration(run.seconds)
    yield "end", "complete" if run.end else "interrupted: no record of an end"
    yield "profile", str(record["profile"].get("name", ""))
    for part in (record["subject"], record["key"]):
        yield from ((name.replace("_", " "), str(value)) for name, value in part.items())
