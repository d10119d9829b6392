"""The plain tables of the report: what differs, a start by phase, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import names, text
from vllm_spark.bench.report.text import letters


@dataclass(frozen=True, slots=True)
class Facts:
    """A table of names and values. A row has one value if that is the same in all columns."""

    id: str
    title: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def differences(runs: Sequence[Evidence]) -> Facts:
    """Return the parts in which the runs differ, the most telling one first."""
    rows = tuple(names.differences(runs))
    return Facts("differences", "What differs", "A is the oldest run.", ("part", *letters(len(runs), "value")), rows)


def starts(runs: Sequence[Evidence]) -> Facts:
    """Return the phases of each start in seconds, and at last the whole of it."""
    columns = {
        f"{kind} {of}".strip(): record["phases"]
        for of, run in zip(letters(len(runs)), runs, strict=True)
        for record in run.cells.values()
        if record["phases"] and record["state"] == "measured"
        for kind in [text.plain(record["cell"]["server"].get("start", record["cell"]["id"]))]
    }
    whole = "until the first token"
    filled = [{**phases, whole: sum(phases.values())} for phases in columns.values()]
    phases = [*dict.fromkeys(phase for one in filled for phase in one if phase != whole), *[whole][: len(filled)]]
    rows = tuple(
        (text.plain(phase).replace("_", " "), tuple(text.number(one[phase]) if phase in one else "—" for one in filled))
        for phase in phases
    )
    return Facts("start", "A start by phase", "Seconds of each phase.", ("phase", *columns), rows)


def subject(runs: Sequence[Evidence]) -> Facts:
    """Return everything about the runs, what differs first. What is unknown in every run is left out."""
    found = [dict(_told(run)) for run in runs]
    folded = [
        (text.plain(name), tuple(text.plain(one.get(name) or "unknown") for one in found))
        for name in dict.fromkeys(name for one in found for name in one)
    ]
    rows = [(name, values if len({*values}) > 1 else values[:1]) for name, values in folded]
    caption = "Everything on which the figures depend." + (" What differs is first." if len(runs) > 1 else "")
    kept = sorted((row for row in rows if row[1] != ("unknown",)), key=lambda row: len(row[1]) == 1)
    return Facts("subject", "What was measured", caption, ("fact", *letters(len(runs), "value")), tuple(kept))


def _told(run: Evidence) -> Iterator[tuple[str, str]]:
    record = run.run
    yield "run", record["id"]
    yield "started", record["started"]
    yield "duration", text.duration(run.seconds)
    yield "end", "complete" if run.end else "interrupted: no record of an end"
    yield "profile", str(record["profile"].get("name", ""))
    for part in (record["subject"], record["key"]):
        yield from ((name.replace("_", " "), str(value)) for name, value in part.items())
    for host, known in record["host"].items():
        yield from ((f"{name.replace('_', ' ')}, {host}", value) for name, value in known.items())
