"""The register of faults: each kind is one row with its id, its text and the function that finds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from vllm_spark.node.bench.observation import Observation
from vllm_spark.node.bench.records import Fault

# Yields what was seen, with values, once per occurrence.
Finder = Callable[[Observation], Iterator[str]]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. `worthless`: the figures of the cell do not count. Else the fault is a warning beside them.
    `of_host`: the samples of a host alone show it, so it is judged for each rank."""

    id: str
    text: str
    source: str
    worthless: bool
    find: Finder
    of_host: bool = False


# Every kind by its id, in the order of the modules.
KINDS: dict[str, FaultKind] = {}


def kind(
    id_: str, text: str, *, source: str, worthless: bool = True, of_host: bool = False
) -> Callable[[Finder], Finder]:
    """Register the decorated function. Raises ValueError if the id is taken."""

    def add(find: Finder) -> Finder:
        if id_ in KINDS:
            raise ValueError(f"two faults have the id {id_}")
        KINDS[id_] = FaultKind(id_, text, source, worthless, find, of_host)
        return find

    return add


def find(observation: Observation) -> list[Fault]:
    """Return every fault of a cell, in the order of the register."""
    return [{"id": row.id, "what": what} for row in KINDS.values() for what in row.find(observation)]


def find_of_hosts(observation: Observation) -> list[Fault]:
    """Return the faults that the samples of the observation alone show. Each one names its host."""
    kinds = [row for row in KINDS.values() if row.of_host]
    return [{"id": row.id, "what": what} for row in kinds for what in row.find(observation)]


def worthless(faults: Collection[Fault], accepted: Collection[str] = ()) -> bool:
    """Return True if a fault makes the figures worthless.

    `accepted` has the ids that count as warnings only: a model of dummy weights answers garbage at the speed of the
    real one.
    """
    return any(KINDS[fault["id"]].worthless and fault["id"] not in accepted for fault in faults)
