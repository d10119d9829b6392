"""The operator lock: its holder and the messages. Pure. The file is the matter of module_utils/spark_lock.py.

One ansible-playbook process at a time holds the lock of a Spark. A run on the same machine can check whether that
process is alive and takes over the lock of a run that has ended. A run on another machine cannot check that: the
refusal shows what the Spark observes, and how to take the lock over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.refusal import Refusal, register

OPERATOR_LOCK = register("operator-lock", runbook="operator-lock")
TAKE_OVER = "-e break_lock=true"
ENDED = "that run has ended without giving it back"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A lock as a Spark reports it. `age_s` is in seconds of the clock of the Spark. `connected`: the ssh connection of
    its run is open, or a run on the Spark itself lives; None if neither was visible. `run` is empty for a damaged
    lock."""

    run: str = ""
    user: str = "an unknown user"
    controller: str = "an unknown machine"
    pid: int = 0
    verb: str = "an unknown verb"
    age_s: float = 0.0
    connected: bool | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LockHolder:
        """Build from the facts of a host, whose types spark_records has checked. Keys that a damaged lock does not have
        become unknown."""
        return cls(**{field.name: document[field.name] for field in fields(cls) if field.name in document})

    def label(self) -> str:
        """Return holder, verb and age."""
        return f"{self.user}@{self.controller} with {self.verb} for {units.clock(self.age_s)}"


def holder_life(holder: LockHolder, alive: bool | None) -> str:
    """Return what is known of the run that holds a lock. `alive` is from spark_lock.lives."""
    if alive:
        return f"that run lives, process {holder.pid} of this machine"
    if alive is False:
        return f"{ENDED}, and the next one that changes this Spark takes it over"
    if holder.connected is False:
        return "that run's connection to the Spark has ended, so it most likely has, too"
    connection = ", and its connection to the Spark is open" if holder.connected else ""
    return f"that run is of another machine{connection}, so whether it lives cannot be seen here"


def take_over_message(holder: LockHolder, alive: bool | None) -> str:
    """Return the line for an operator whose run takes over a lock."""
    return f"takes the lock over from {holder.label()}: {ENDED if alive is False else 'as break_lock says'}"


def lost_message(holder: LockHolder) -> str:
    """Return the line for an operator whose lock was taken over by another run."""
    return f"the lock is no longer this run's: {holder.label()} took it over"


def refusal(host: str, holder: LockHolder, alive: bool | None) -> Refusal:
    """Return the reason why a run must not change this Spark now."""
    ask = f"ask {holder.user}, or see whether it lives with `ps -p {holder.pid}` on {holder.controller}"
    return OPERATOR_LOCK(
        what=f"{host} is held by {holder.label()}; {holder_life(holder, alive)}",
        expected="nobody else to be changing it; nothing was changed",
        fix=f"{'wait until it has ended' if alive else ask}; to take it over, the same command with {TAKE_OVER}.",
    )
