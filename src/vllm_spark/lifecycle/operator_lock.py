"""Two operators: who holds a Spark, whether that run still lives, and what the other is told. Pure, but for `this_run`
and `lives_here`.

A Spark is held by one ansible-playbook process at a time. Whoever asks from the same machine can see whether that
process lives, so a lock whose run has ended is taken over with a line that says so. From another machine nobody can
know for certain: the refusal says what the Spark itself sees, and how to take the lock over.
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
    """One ansible-playbook process. `machine` is the same for two processes that can see each other: the kernel's boot
    and the namespace of process ids; empty where the system tells neither. `started` tells a process from a later one
    of its number."""

    user: str
    controller: str
    machine: str
    pid: int
    started: str

    @property
    def id(self) -> str:
        return f"{self.controller}:{self.machine}:{self.pid}:{self.started}"

    def holder(self, verb: str) -> dict[str, Any]:
        """What the lock on a Spark says; the Spark adds when it was."""
        return {**asdict(self), "run": self.id, "verb": verb}


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A lock as a Spark shows it. `age_s` in seconds of the Spark's clock; `connected`: is the ssh connection by which
    it was taken still open, None where there was none to be seen."""

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
    def from_json(cls, shown: Mapping[str, Any]) -> LockHolder:
        """From what the module spark_lock returns. What a broken lock lacks is said as unknown."""
        return cls(
            run=str(shown.get("run", "")),
            user=str(shown.get("user", "somebody")),
            controller=str(shown.get("controller", "an unknown machine")),
            machine=str(shown.get("machine", "")),
            pid=int(shown.get("pid", 0)),
            started=str(shown.get("started", "")),
            verb=str(shown.get("verb", "an unknown verb")),
            age_s=float(shown.get("age_s", 0)),
            connected=shown.get("connected"),
        )

    def said(self) -> str:
        """Holder, verb and age."""
        return f"{self.user}@{self.controller} with {self.verb} for {units.clock(self.age_s)}"


def this_run(pid: int, proc: Path = Path("/proc")) -> OperatorRun:
    """The run whose main process has this id."""
    return OperatorRun(
        user=getpass.getuser(),
        controller=socket.gethostname(),
        machine=_machine(proc),
        pid=pid,
        started=started(pid, proc),
    )


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """When a process started, in ticks since the kernel's boot; empty where there is no such process, or one that has
    ended and that nobody has waited for."""
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


def lives(held: LockHolder, mine: OperatorRun, started_now: str) -> bool | None:
    """Does the run that holds a lock still live? `started_now` is what `started` says of its process id here. None
    where it runs on another machine, or nothing tells."""
    if not held.machine or held.machine != mine.machine or held.controller != mine.controller or not held.started:
        return None
    return started_now == held.started


def lives_here(held: LockHolder, mine: OperatorRun) -> bool | None:
    """`lives`, as the processes of this machine are now."""
    return lives(held, mine, started(held.pid))


def holder_life(held: LockHolder, alive: bool | None) -> str:
    """What is known of the run that holds a lock; `alive` is from `lives_here`."""
    if alive:
        return f"that run lives, process {held.pid} of this machine"
    if alive is False:
        return f"{ENDED}, and the next one that changes this Spark takes it over"
    if held.connected is False:
        return "that run's connection to the Spark has ended, so it most likely has, too"
    seen = ", and its connection to the Spark is open" if held.connected else ""
    return f"that run is of another machine{seen}, so whether it lives cannot be seen here"


def take_over_message(held: LockHolder, alive: bool | None) -> str:
    """The line for an operator whose run takes a lock from another."""
    return f"takes the lock over from {held.said()}: {ENDED if alive is False else 'as break_lock says'}"


def lost_message(held: LockHolder) -> str:
    """The line for an operator whose lock somebody else took over meanwhile."""
    return f"the lock is no longer this run's: {held.said()} took it over"


def refusal(host: str, held: LockHolder, alive: bool | None) -> Refusal:
    """Why a run may not change this Spark now."""
    return OPERATOR_LOCK(
        what=f"{host} is held by {held.said()}; {holder_life(held, alive)}",
        expected="nobody else to be changing it; nothing was changed",
        fix=f"{_way_out(held, alive)}; to take it over, the same command with {TAKE_OVER}.",
    )


def _way_out(held: LockHolder, alive: bool | None) -> str:
    if alive:
        return "wait until it has ended"
    return f"ask {held.user}, or see whether it lives with ps -p {held.pid} on {held.controller}"
