"""Measured starts of a deployment: their phases from the engine's log, and their cells of the evidence. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.node.bench import figures
from vllm_spark.node.bench.records import Cell, CellRecord
from vllm_spark.verify import startup_phases
from vllm_spark.verify.startup_phases import Phase, StartupProgress


@dataclass(frozen=True, slots=True)
class Start:
    """One start, until its first token. `phases` in order and in seconds; their sum is `seconds`.

    `memory_gib` is the memory of the head that the start took, None if it is unknown.
    """

    seconds: float
    phases: Mapping[str, float]
    memory_gib: float | None = None


def phases(lines: Iterable[tuple[float, str]], seconds: float) -> dict[str, float]:
    """Return the seconds of each phase of a start. `lines` have their seconds after its begin.

    A phase lasts until the first line of the next one, the last phase until the first token. An engine that restarts
    meanwhile repeats its phases, and their times are added.
    """
    progress, since = StartupProgress(Phase.STARTING), 0.0
    lasted: dict[str, float] = {}
    for at, line in lines:
        if at > seconds:
            break
        after = startup_phases.advance(progress, [line])
        if after.phase != progress.phase:
            lasted[progress.phase.value] = lasted.get(progress.phase.value, 0.0) + at - since
            since = at
        progress = after
    last = progress.phase.value
    return {**lasted, last: lasted.get(last, 0.0) + seconds - since}


def cell_record(cell: Cell, starts: Sequence[Start]) -> CellRecord:
    """Return the record of a cell: the time and the memory of its starts, and the median of each phase."""
    memory = [start.memory_gib for start in starts if start.memory_gib is not None]
    measured = {"start": figures.figure("start", [start.seconds for start in starts])}
    if memory:
        measured["memory"] = figures.figure("memory", memory)
    names = list(dict.fromkeys(name for start in starts for name in start.phases))
    return {
        "record": "cell",
        "cell": cell,
        "state": "measured",
        "started": 0.0,
        "seconds": round(sum(start.seconds for start in starts), 3),
        "runs": len(starts),
        "figures": measured,
        "faults": [],
        "phases": {
            name: round(statistics.median(start.phases.get(name, 0.0) for start in starts), 3) for name in names
        },
        "samples": {},
    }
