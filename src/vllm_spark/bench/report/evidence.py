"""Runs as the report reads them from evidence files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TypeGuard, cast

from vllm_spark.node.bench.records import CellRecord, EndRecord, Figure, RunRecord


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


def load(path: Path) -> Run:
    """Return the run of an evidence file. Raises ValueError if a line is not JSON, or the first one is not `run`."""
    with path.open(encoding="utf-8") as lines:
        return run_of(json.loads(line) for line in lines if line.strip())


def run_of(records: Iterable[dict[str, Any]]) -> Run:
    """Return the run of these records. A later cell with the same id replaces the earlier one."""
    first, *others = [*records] or [{}]
    if first.get("record") != "run":
        raise ValueError(f"the first record is {first.get('record')!r} — expected: 'run'")
    cells = {record["cell"]["id"]: record for record in others if record.get("record") == "cell"}
    ends = [record for record in others if record.get("record") == "end"]
    return Run(
        cast(RunRecord, first),
        tuple(cast(CellRecord, cell) for cell in cells.values()),
        cast(EndRecord, ends[-1]) if ends else None,
    )


def letter(index: int) -> str:
    """Return the letter of a run in the report: A for the first."""
    return ascii_uppercase[index]


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def figure(cell: CellRecord, metric: str) -> Figure | None:
    """Return a figure of a measured cell that has a number as its median."""
    found = cell["figures"].get(metric) if cell["state"] == "measured" else None
    return found if found and is_number(found["median"]) else None
