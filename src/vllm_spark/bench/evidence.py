"""Evidence files: the runs of a bench, checked while they are read. node/bench/records.py has their format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.text import quoted
from vllm_spark.node.bench.records import SCHEMA, UNITS, CellRecord, EndRecord, Key, RunRecord

BENCH_EVIDENCE = register("bench-evidence", runbook="bench-evidence")

FOLDER = Path("reports/bench")
STATES = ("measured", "failed", "worthless")
RUN_KEYS = ("id", "started", "profile", "key", "subject", "host")
CELL_KEYS = ("cell", "state", "started", "seconds", "runs", "figures", "faults", "phases", "samples")


@dataclass(frozen=True, slots=True)
class Run:
    """One evidence file. `end` is None for a run that was interrupted. Cells are in the order of their first record."""

    record: RunRecord
    cells: tuple[CellRecord, ...]
    end: EndRecord | None

    @property
    def seconds(self) -> float:
        """Return the duration of the run, or until the end of its last cell."""
        if self.end:
            return self.end["seconds"]
        return max((cell["started"] + cell["seconds"] for cell in self.cells), default=0.0)

    def cell(self, id_: str) -> CellRecord | None:
        """Return the cell with this id."""
        return next((cell for cell in self.cells if cell["cell"]["id"] == id_), None)


class _BrokenError(Exception):
    """A record that is not one of an evidence file. The text says what is wrong with it."""


def load(path: Path) -> Run:
    """Return the run of an evidence file. Raises RefusedError with the first line that is not a record of one.

    A last line without its end is what an interruption leaves. It is ignored.
    """
    try:
        *lines, _rest = path.read_text(encoding="utf-8").split("\n")
        return run_of(_record(number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (_BrokenError, OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RefusedError(
            [
                BENCH_EVIDENCE(
                    what=f"{path}: {what}",
                    expected="an evidence file of a bench",
                    fix=f"name another file, or run the bench again. `head -c 300 {path}` shows its beginning.",
                )
            ]
        ) from error


def run_of(records: Iterable[Mapping[str, Any]]) -> Run:
    """Return the run of these records. A later cell with the same id replaces the earlier one."""
    first, *others = [*records] or [{}]
    if first.get("record") != "run":
        raise _BrokenError(f"the first record is {quoted(first.get('record'))}, not 'run'")
    if any(record["record"] == "run" for record in others):
        raise _BrokenError("it has two records of a run")
    cells = {record["cell"]["id"]: record for record in others if record["record"] == "cell"}
    ends = [record for record in others if record["record"] == "end"]
    return Run(
        cast(RunRecord, first),
        tuple(cast(CellRecord, cell) for cell in cells.values()),
        cast(EndRecord, ends[-1]) if ends else None,
    )


def _record(number: int, line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _BrokenError(f"line {number} is not JSON: {error}") from error
    kind = record.get("record") if isinstance(record, dict) else None
    check = {"run": _run_faults, "cell": _cell_faults, "end": _end_faults}.get(str(kind))
    fault = next(check(record), "") if check else f"has no record that this version knows: {quoted(kind)}"
    if fault:
        raise _BrokenError(f"line {number} {fault}")
    return cast(Mapping[str, Any], record)


def _run_faults(record: Mapping[str, Any]) -> Iterator[str]:
    if record.get("schema") != SCHEMA:
        yield f"has the schema {quoted(record.get('schema'))}, and this version reads {SCHEMA}"
    yield from _missing(record, RUN_KEYS)
    key = record["key"] if isinstance(record["key"], dict) else {}
    yield from (f"has no text key.{name}" for name in Key.__required_keys__ if not isinstance(key.get(name), str))


def _cell_faults(record: Mapping[str, Any]) -> Iterator[str]:
    yield from _missing(record, CELL_KEYS)
    if not isinstance(record["cell"], dict) or not isinstance(record["cell"].get("id"), str):
        yield "has no cell.id"
    if record["state"] not in STATES:
        yield f"has the state {quoted(record['state'])} — expected: {', '.join(STATES)}"
    for name in ("started", "seconds"):
        if not _is_number(record[name]):
            yield f"has no number {name}"
    for metric, figure in record["figures"].items():
        yield from _figure_faults(metric, figure)


def _figure_faults(metric: str, figure: Any) -> Iterator[str]:
    if metric not in UNITS:
        yield f"has the unknown metric {quoted(metric)}"
    elif not isinstance(figure, dict) or figure.get("unit") != UNITS[metric]:
        yield f"has {metric} in another unit than {UNITS[metric]}"
    elif not isinstance(figure.get("values"), list) or not figure["values"]:
        yield f"has no values of {metric}"
    elif not all(map(_is_value, [figure.get("median"), *figure["values"]])):
        yield f"has a value of {metric} that is not a number"
    elif figure.get("spread") is not None and not _is_number(figure["spread"]):
        yield f"has a spread of {metric} that is not a number"


def _end_faults(record: Mapping[str, Any]) -> Iterator[str]:
    if not _is_number(record.get("seconds")):
        yield "has no number seconds"


def _missing(record: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    yield from (f"has no {key}" for key in keys if key not in record)


def _is_value(value: object) -> bool:
    return all(map(_is_number, value)) if isinstance(value, list) else _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
