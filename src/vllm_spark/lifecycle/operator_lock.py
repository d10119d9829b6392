"""The operator lock: its holder, whether that run is alive, and the messages. Pure except for `this_run` and
`lives_here`.

One ansible-playbook process at a time holds the lock of a Spark. A run on the same machine can check whether that
process is alive and takes over the lock of a run that has ended. A run on another machine cannot check that: the
refusal shows what the Spark observes, and how to take the lock over.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.refusal import Refusal, register

OPERATOR_LOCK = register("operator-lock", runbook="operator-lock")

TAKE_OVER = "-e break_lock=true"
ENDED = "that run has ended without giving it back"


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """One ansible-playbook process. `machine` is equal for two processes that can see each other: boot id and PID
    namespace; empty if the system reports neither. `started` distinguishes a process from a later one with its PID."""

    user: str
    controller: str
    machine: str
    pid: int
    started: str

    @property
    def id(self) -> str:
        return f"{self.controller}:{self.machine}:{self.pid}:{self.started}"

    def holder(self, verb: str) -> dict[str, Any]:
        """Return the content of the lock. The Spark adds the time."""
        return {**asdict(self), "run": self.id, "verb": verb}


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A lock as a Spark reports it. `age_s` is in seconds of the clock of the Spark. `connected`: the ssh connection of
    its run is open; None if none was visible."""

    run: str
    user: str
    controller: str
    machine: str
    pid: int
    started: str
    verb: str
    age_s: float
    connected: bool | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LockHolder:
        """Build from the result of the module spark_lock, which has checked the types. Keys that a damaged lock does
        not have become unknown."""
        return cls(
            run=str(document.get("run", "")),
            user=str(document.get("user", "an unknown user")),
            controller=str(document.get("controller", "an unknown machine")),
            machine=str(document.get("machine", "")),
            pid=int(document.get("pid", 0)),
            started=str(document.get("started", "")),
            verb=str(document.get("verb", "an unknown verb")),
            age_s=float(document.get("age_s", 0)),
            connected=document.get("connected"),
        )

    def label(self) -> str:
        """Return holder, verb and age."""
        return f"{self.user}@{self.controller} with {self.verb} for {units.clock(self.age_s)}"


def this_run(pid: int, proc: Path = Path("/proc")) -> OperatorRun:
    """Return the run whose main process has this id."""
    return OperatorRun(
        user=getpass.getuser(),
        controller=socket.gethostname(),
        machine=_machine(proc),
        pid=pid,
        started=started(pid, proc),
    )


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the start of a process in clock ticks since boot; empty if it does not exist or is a zombie."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name, in parentheses, may hold spaces; what follows it is the third field and on (proc(5)).
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]


def _machine(proc: Path) -> str:
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink(proc / 'self/ns/pid')}"
    except OSError:
        return ""


def lives(holder: LockHolder, own_run: OperatorRun, started_now: str) -> bool | None:
    """Return True if the run that holds a lock is alive, None if this cannot be known, as for a run of another machine.
    `started_now` is the result of `started` for its process id on this machine."""
    if (
        not holder.machine
        or holder.machine != own_run.machine
        or holder.controller != own_run.controller
        or not holder.started
    ):
        return None
    return started_now == holder.started


def lives_here(holder: LockHolder, own_run: OperatorRun) -> bool | None:
    """Return `lives` for the current processes of this machine."""
    return lives(holder, own_run, started(holder.pid))


def holder_life(holder: LockHolder, alive: bool | None) -> str:
    """Return what is known of the run that holds a lock. `alive` is from `lives_here`."""
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
    return OPERATOR_LOCK(
        what=f"{host} is held by {holder.label()}; {holder_life(holder, alive)}",
        expected="nobody else to be changing it; nothing was changed",
        fix=f"{_advice(holder, alive)}; to take it over, the same command with {TAKE_OVER}.",
    )


def _advice(holder: LockHolder, alive: bool | None) -> str:
    if alive:
        return "wait until it has ended"
    return f"ask {holder.user}, or see whether it lives with ps -p {holder.pid} on {holder.controller}"
