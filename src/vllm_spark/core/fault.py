"""Faults of a document that an operator wrote: a recipe, an inventory, a data file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `what` is the dotted path with the value seen, e.g. `topology.executor: ray`."""

    what: str
    expected: str

    def __str__(self) -> str:
        return f"{self.what} — expected: {self.expected}"
