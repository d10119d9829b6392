"""Watching a start: what each look at the box means, and when to stop looking. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_spark import diagnose, gates, progress
from vllm_spark.progress import Phase, Progress
from vllm_spark.refusal import message

# An engine that dies of something unknown is given systemd's restart once: a first, compiling start profiles
# a higher peak than the next. A known cause does not heal by itself.
ATTEMPTS = 2

# An unknown cause, and a rank that ended because of its peer: the peer's own log decides.
UNDECIDED = (diagnose.UNRECOGNISED, "peer-ended")

# Enough for any start-up log; a watch must not grow with a log that never ends.
KEPT_LINES = 20_000


class NotServingError(Exception):
    """A start that failed or took too long. Its text says why, and what to do."""


@dataclass(slots=True)
class Watch:
    """One start of one deployment, as the looks at it add up. Times in seconds."""

    deadline_s: float
    progress: Progress = field(default_factory=lambda: Progress(Phase.STARTING))
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
        self.progress = progress.advance(self.progress, probe["lines"])
        if gates.is_ready(probe):
            self.progress = Progress(Phase.SERVING)
            return "ready"
        if unit.get("ActiveState") in {"failed", "inactive"} or died >= ATTEMPTS:
            return "failed"
        if died and self.known_cause():
            return "failed"
        return "waiting"

    def known_cause(self) -> bool:
        """Does the log so far show a cause that a restart will not heal?"""
        finding = diagnose.root_cause(self.lines)
        return finding is not None and finding.signature not in UNDECIDED

    def headline(self) -> str:
        """The one line that an operator sees."""
        return progress.headline(self.progress, self.elapsed_s, self.deadline_s)


def failure(watch: Watch, unit: str, host: str) -> str:
    """Why a start failed: the root cause, the fix, and where the log is."""
    if not watch.lines:
        fix = f"ansible-playbook deploy.yml -l {host}."
        return message(f"{unit} does not run on {host}", "it to serve", fix, runbook="engine-failed-to-start")
    finding = diagnose.root_cause(watch.lines)
    if finding is None:
        name = unit.partition("@")[2].removesuffix(".service")
        fix = f"ssh {host} sudo /etc/vllm-spark/{name}/launch, and read what it says."
        explained = message(
            f"{unit} ended without naming a cause", "it to serve", fix, runbook="engine-failed-to-start"
        )
    else:
        explained = diagnose.explain(finding)
    return f"{explained} {log_place(unit, host)}"


def overdue(watch: Watch, unit: str, host: str) -> str:
    """Why waiting ended: the deadline, and how far the start had come."""
    what = f"{unit} gave no token within {watch.deadline_s:.0f} s; it was {watch.headline()}"
    fix = "if the phase still moves, raise gates.ready.deadline_s of the recipe."
    return f"{message(what, 'it to serve by then', fix, runbook='not-ready-in-time')} {log_place(unit, host)}"


def log_place(unit: str, host: str) -> str:
    """Where an operator reads on."""
    return f"Log: ssh {host} sudo journalctl -u {unit} -e"
