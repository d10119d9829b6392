"""Evidence files: strict reading of the records that a run of the bench wrote (node.bench.records)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, schema
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.node.bench.records import SCHEMA, UNITS, CellRecord, EndRecord, Key, RunRecord, Subject

EVIDENCE_BROKEN = register("evidence-broken", runbook="evidence-broken")

FILE = Path(__file__).with_name("evidence.schema.json")
SUFFIX = ".jsonl"
# A soak of eight hours has about 30000 samples of ten values on each host.
MAX_BYTES = 64 << 20
MAX_NODES = 2_000_000
# The metric whose values are lists.
BY_POSITION = "acceptance_by_position"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The content of a file: the run, its cells by id in the file's order, and the end of a run that reached it.

    `accepted`: why its owner takes its figures as the new level; empty for a run that nobody accepted.
    """

    file: Path
    run: RunRecord
    cells: Mapping[str, CellRecord]
    end: EndRecord | None
    notes: tuple[str, ...] = ()
    accepted: str = ""

    @property
    def seconds(self) -> float:
        """Return the duration of the run; of an interrupted one until the end of its last cell."""
        if self.end:
            return self.end["seconds"]
        return max((cell["started"] + cell["seconds"] for cell in self.cells.values()), default=0.0)


def oldest_first(runs: Iterable[Evidence]) -> list[Evidence]:
    """Return the runs in the order in which they began."""
    return sorted(runs, key=lambda run: run.run["started"])


def begin(profile: Mapping[str, Any], key: Key, subject: Subject) -> RunRecord:
    """Return the record of a run that begins now."""
    return {
        "record": "run",
        "schema": SCHEMA,
        "id": secrets.token_hex(6),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "profile": dict(profile),
        "key": key,
        "subject": subject,
        "host": {},
    }


def read(file: Path) -> Evidence:
    """Return the content of an evidence file.

    Raises RefusedError for the first broken line. A last line without its end is a note, because a run that was
    interrupted leaves one.
    """
    try:
        text = documents.read_text(file, MAX_BYTES)
    except DocumentError as error:
        raise _broken(str(file), error.fault.what, error.fault.expected) from error
    return parse(text, file)


def parse(text: str, file: Path) -> Evidence:
    """Return the content of a text; `file` is its name in messages. Raises RefusedError."""
    reader = _Reader(file)
    *lines, last = text.split("\n")
    for line in lines:
        reader.take(line)
    if last:
        reader.take_last(last)
    return reader.evidence()


@dataclass
class _Reader:
    """Reads the lines of one file in order."""

    file: Path
    number: int = 0
    run: RunRecord | None = None
    end: EndRecord | None = None
    accepted: str = ""
    cells: dict[str, CellRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Read a complete line. Raises RefusedError."""
        self.number += 1
        try:
            record = documents.json_document(line, MAX_NODES)
        except DocumentError as error:
            raise self.broken(error.fault.what, error.fault.expected) from error
        self.check(record)
        if self.end and record["record"] not in ("run", "accept"):
            self.notes.append(f"line {self.number} follows an end: the run went on, and its last end counts")
            self.end = None
        match record["record"]:
            case "run":
                self.take_run(record)
            case "cell":
                # The cell was repeated after an interruption: its place is the later one.
                self.cells.pop(record["cell"]["id"], None)
                self.cells[record["cell"]["id"]] = record
            case "accept":
                self.accepted = record["why"]
            case _:
                self.end = record

    def take_last(self, line: str) -> None:
        """Read a line without its end. It is a note if it is cut."""
        try:
            documents.json_document(line, MAX_NODES)
        except DocumentError:
            self.number += 1
            self.notes.append(f"line {self.number} is cut: the run was interrupted while it was written")
            return
        self.take(line)

    def take_run(self, record: RunRecord) -> None:
        """Keep the run record. Raises RefusedError if the file has one already."""
        if self.run:
            raise self.broken(f"a second run record, {record['id']} after {self.run['id']}", "one run per file")
        self.run = record

    def check(self, record: Any) -> None:
        """Raise RefusedError if a record is not as node.bench.records describes it."""
        if isinstance(record, dict) and record.get("record") == "run" and record.get("schema") != SCHEMA:
            raise self.broken(f"schema {schema.format_value(record.get('schema'))}", f"schema {SCHEMA}")
        fault = next(schema.faults(record, FILE), None)
        if fault:
            raise self.broken(fault.what, fault.expected)
        if self.run is None and record["record"] != "run":
            raise self.broken(f"a {record['record']} record before the run record", "the run record in the first line")
        for metric, figure in record.get("figures", {}).items():
            self.check_figure(record["cell"]["id"], metric, figure)

    def check_figure(self, cell: str, metric: str, figure: Mapping[str, Any]) -> None:
        """Raise RefusedError for a metric that is unknown, has another unit, or has values that are not numbers."""
        if metric not in UNITS:
            raise self.broken(f"{cell}: unknown metric {metric}", f"one of {', '.join(UNITS)}")
        if figure["unit"] != UNITS[metric]:
            raise self.broken(f"{cell}: {metric} in {figure['unit']}", f"{metric} in {UNITS[metric]}")
        values = [figure["median"], *figure["values"]]
        if not all(_is_shares(value) if metric == BY_POSITION else _is_number(value) for value in values):
            kind = "lists of numbers" if metric == BY_POSITION else "numbers"
            raise self.broken(f"{cell}: {metric} has {schema.format_value(values)}", kind)

    def broken(self, what: str, expected: str) -> RefusedError:
        return _broken(f"{self.file}, line {self.number}", what, expected)

    def evidence(self) -> Evidence:
        """Return the content. Raises RefusedError without a run record."""
        if self.run is None:
            raise _broken(str(self.file), "no run record", "the run record in the first line")
        if self.end is None:
            self.notes.append("no end record: the run was interrupted, and the cells after it are not measured")
        return Evidence(self.file, self.run, self.cells, self.end, tuple(self.notes), self.accepted)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_shares(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _broken(place: str, what: str, expected: str) -> RefusedError:
    fix = "name another evidence file, or measure again: `vllm-spark bench http://SPARK:8000 --model NAME`."
    return EVIDENCE_BROKEN.error(what=f"{place}: {what}", expected=expected, fix=fix)
