"""How the report reads runs: the letter of a run, and figures that are numbers."""

from __future__ import annotations

import math
from string import ascii_uppercase
from typing import TypeGuard

from vllm_spark.node.bench.records import CellRecord, Figure


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
