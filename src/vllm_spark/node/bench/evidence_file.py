"""Write an evidence file line by line, and read back which cells it already has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class OtherRunError(Exception):
    """A file that a run may not continue: of another run, or with a line that is no record. The text says which."""


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as one line. It is on the disk when this returns, because a run may take hours."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Present:
    """What a file has already: when its run began (empty: it begins now), ids of the measured cells, and the end of the
    last cell in seconds after the start."""

    since: str = ""
    ids: frozenset[str] = frozenset()
    ended: float = 0.0


def begin(path: Path, run: Mapping[str, Any]) -> Present:
    """Begin the file with a run record, or continue in it. Return what it has already.

    A last line that an interruption has cut is removed, and so is the end of a run that ended without its operator.
    Raises OtherRunError.
    """
    lines = _complete_lines(path)
    records = _records(path, lines)
    if not records:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        append(path, run)
        return Present()
    if differing := _differing(records, run):
        raise OtherRunError(f"{path} is of a run with another {', '.join(differing)}")
    kept = [line for line, record in zip(lines, records, strict=True) if record["record"] != "end"]
    if kept != lines:
        _replace(path, kept)
    cells = [record for record in records if record["record"] == "cell"]
    return Present(
        records[0].get("started", ""),
        _measured(records),
        max((record["started"] + record["seconds"] for record in cells), default=0.0),
    )


def counts(path: Path) -> tuple[int, int]:
    """Return (cells with figures, cells without). The last record of a cell counts."""
    cells = [record for record in _records(path, _complete_lines(path)) if record["record"] == "cell"]
    states = {record["cell"]["id"]: record["state"] for record in cells}
    measured = sum(state == "measured" for state in states.values())
    return measured, len(states) - measured


def present(content: str, run: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the cells that a file with this content has measured; none if no run may continue it."""
    try:
        records = _records(Path(), [line.encode() for line in content.splitlines() if line.endswith("}")])
    except OtherRunError:
        return frozenset()
    return frozenset() if not records or _differing(records, run) else _measured(records)


def _differing(records: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs between the run of a file and another run: the profile, or parts of the key."""
    first = records[0]
    old, new = first.get("key", {}), run["key"]
    parts = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ["profile"] * (first.get("profile") != run["profile"]) + parts


def _measured(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    states = {record["cell"]["id"]: record["state"] for record in records if record["record"] == "cell"}
    return frozenset(name for name, state in states.items() if state == "measured")


def _complete_lines(path: Path) -> list[bytes]:
    """Return the complete lines, and cut the file after them."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) != len(content):
        path.write_bytes(complete)
    return [line for line in complete.splitlines() if line.strip()]


def _records(path: Path, lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the records of lines. Raises OtherRunError for one that is none; a crash may leave such a line."""
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            record["record"]
        except (ValueError, TypeError, KeyError):
            raise OtherRunError(f"line {number} of {path} is no record") from None
        records.append(record)
    return records


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Replace the lines of the file. A crash leaves the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_bytes(b"".join(line + b"\n" for line in lines))
    new.replace(path)
