"""Watching a start: what each look at the box means, and when to stop looking. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core.refusal import register
from vllm_spark.doctor import diagnosis
from vllm_spark.verify import gates, startup_phases
from vllm_spark.verify.startup_phases import Phase, StartupProgress

ENGINE_FAILED_TO_START = register("engine-failed-to-start", runbook="engine-failed-to-start")
NOT_READY_IN_TIME = register("not-ready-in-time", runbook="not-ready-in-time")

# An engine that dies of something unknown is given systemd's restart once: a first, compiling start profiles
# a higher peak than the next. A known cause does not heal by itself.
ATTEMPTS = 2

# An unknown cause, and a rank that ended because of its peer: the peer's own log decides.
UNDECIDED = (diagnosis.UNRECOGNISED, "peer-ended")

# Enough for any start-up log; a watch must not grow with a log that never ends.
KEPT_LINES = 20_000


class NotServingError(Exception):
    """A start that failed or took too long. Its text says why, and what to do."""


@dataclass(slots=True)
class StartupWatch:
    """One start of one deployment, as the looks at it add up. Times in seconds."""

    deadline_s: float
    progress: StartupProgress = field(default_factory=lambda: StartupProgress(Phase.STARTING))
    lines: list[str] = field(default_factory=list)
    attempt_begins: int = 0
    restarts_before: int | None = None
    elapsed_s: float = 0.0

    def look(self, probe: Mapping[str, Any]) -> str:
        """Take in one probe. Returns `ready`, `failed` or `waiting`."""
        unit = probe["unit"]
        restarts = int(unit.get("NRestarts") or 0)
        if self.restarts_before is None:
            self.restarts_before = restarts
        died = restarts - self.restarts_before
        self.elapsed_s = max(self.elapsed_s if died else 0.0, probe["running_s"])
        self.lines = [*self.lines, *probe["lines"]][-KEPT_LINES:]
        self.progress = startup_phases.advance(self.progress, probe["lines"])
        if gates.is_ready(probe):
            self.progress = StartupProgress(Phase.SERVING)
            return "ready"
        if unit.get("ActiveState") in {"failed", "inactive"} or died >= ATTEMPTS:
            return "failed"
        if died and self.known_cause():
            return "failed"
        return "waiting"

    def known_cause(self) -> bool:
        """Does the log so far show a cause that a restart will not heal?"""
        finding = diagnosis.root_cause(self.lines)
        return finding is not None and finding.signature not in UNDECIDED

    def headline(self) -> str:
        """The one line that an operator sees."""
        return startup_phases.headline(self.progress, self.elapsed_s, self.deadline_s)


def failure(watch: StartupWatch, unit: str, host: str) -> str:
    """Why a start failed: the root cause, the fix, and where the log is."""
    if not watch.lines:
        fix = f"ansible-playbook deploy.yml -l {host}."
        return str(
            ENGINE_FAILED_TO_START(
                what=f"{unit} does not run on {host}",
                expected="it to serve",
                fix=fix,
            )
        )
    finding = diagnosis.root_cause(watch.lines)
    if finding is None:
        name = unit.partition("@")[2].removesuffix(".service")
        fix = f"ssh {host} sudo /etc/vllm-spark/{name}/launch, and read what it says."
        explained = str(
            ENGINE_FAILED_TO_START(
                what=f"{unit} ended without naming a cause",
                expected="it to serve",
                fix=fix,
            )
        )
    else:
        explained = diagnosis.explain(finding)
    return f"{explained} {log_place(unit, host)}"


def overdue(watch: StartupWatch, unit: str, host: str) -> str:
    """Why waiting ended: the deadline, and how far the start had come."""
    what = f"{unit} gave no token within {watch.deadline_s:.0f} s; it was {watch.headline()}"
    fix = "if the phase still moves, raise gates.ready.deadline_s of the recipe."
    return f"{NOT_READY_IN_TIME(what=what, expected='it to serve by then', fix=fix)!s} {log_place(unit, host)}"


def log_place(unit: str, host: str) -> str:
    """Where an operator reads on."""
    return f"Log: ssh {host} sudo journalctl -u {unit} -e"
