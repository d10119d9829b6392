"""Write an evidence file line by line, and read back which cells it already has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class OtherRunError(Exception):
    """A file of a run with another profile or key than the run that should continue in it. The text says which."""


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as one line. It is on the disk when this returns, because a run may take hours."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class Present:
    """What a file has already: ids of the measured cells, and the end of the last cell in seconds after the start."""

    ids: frozenset[str] = frozenset()
    ended: float = 0.0


def begin(path: Path, run: Mapping[str, Any]) -> Present:
    """Begin the file with a run record, or continue in it. Return what it has already.

    A last line that an interruption has cut is removed. Raises OtherRunError if the file belongs to another run.
    """
    records = _complete_records(path)
    if not records:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        append(path, run)
        return Present()
    differing = [name for name in ("profile", "key") if records[0].get(name) != run[name]]
    if differing:
        raise OtherRunError(f"the {' and the '.join(differing)} of {path} differ")
    cells = [record for record in records if record["record"] == "cell"]
    return Present(
        _measured(records),
        max((record["started"] + record["seconds"] for record in cells), default=0.0),
    )


def counts(path: Path) -> tuple[int, int]:
    """Return (cells with figures, cells without). The last record of a cell counts."""
    cells = [record for record in _complete_records(path) if record["record"] == "cell"]
    states = {record["cell"]["id"]: record["state"] for record in cells}
    measured = sum(state == "measured" for state in states.values())
    return measured, len(states) - measured


def present(content: str, run: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the cells that a file with this content has measured; none if it belongs to another run."""
    records = [json.loads(line) for line in content.splitlines() if line.endswith("}")]
    if not records or any(records[0].get(name) != run[name] for name in ("profile", "key")):
        return frozenset()
    return _measured(records)


def _measured(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    cells = (record for record in records if record["record"] == "cell")
    return frozenset(record["cell"]["id"] for record in cells if record["state"] == "measured")


def _complete_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of the complete lines, and cut the file after them."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) != len(content):
        path.write_bytes(complete)
    return [json.loads(line) for line in complete.splitlines() if line.strip()]
