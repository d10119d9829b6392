"""Follows the start of a deployment: what each probe means, and when to stop waiting. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from vllm_spark.core.refusal import Fix, register
from vllm_spark.doctor import diagnosis
from vllm_spark.doctor.families import families
from vllm_spark.doctor.findings import MOST_OF_A_CAUSE, UNRECOGNISED, explain, remoteness
from vllm_spark.doctor.places import Place
from vllm_spark.node.deployment_state import FAILED, GAVE_UP
from vllm_spark.node.host_layout import deployment_of
from vllm_spark.node.starts import nth
from vllm_spark.verify import startup_phases
from vllm_spark.verify.gates import ready
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.startup_phases import Phase, StartupProgress

ENGINE_FAILED_TO_START = register("engine-failed-to-start", runbook="engine-failed-to-start")
NOT_READY_IN_TIME = register("not-ready-in-time", runbook="not-ready-in-time")

# What the supervisor of a rank and the state program say of a start that has failed.
FAILED_START = re.compile(r"vllm-spark: (the start (?:of rank \d+ )?failed: .+)")

# An engine that ends for an unknown reason may start once more by itself: a first, compiling start profiles a higher
# peak than the next. A restart does not remove a known cause.
ATTEMPTS = 2

# More than any start-up log has. It bounds the memory of a watch.
KEPT_LINES = 20_000


class NotServingError(Exception):
    """Raised for a start that failed or exceeded its deadline. Its text says why, and what to do. `remoteness` is that
    of the finding in it."""

    def __init__(self, text: str, remoteness: int) -> None:
        super().__init__(text)
        self.remoteness = remoteness


@cache
def _undecided() -> frozenset[str]:
    """Return the findings that do not decide: an unknown cause, a rank that ended because of its peer (the peer's log
    decides), that only says that it ended or that waits for its peer, and families of causes that a second start can
    survive. Only a start that fails reads the families."""
    return frozenset(
        (
            UNRECOGNISED,
            "peer-ended",
            "rank-ended",
            "waits-for-peer",
            "ray-start-slow",
            *(family.id for family in families() if family.transient),
        )
    )


@dataclass(slots=True)
class StartupWatch:
    """The state of one start, accumulated over probes. Times are in seconds. `failures`: how many starts have failed
    since the first probe. `news`: what the last probe has brought of failed starts, also of those within a start."""

    deadline_s: float
    word: str = "token"  # what the server of this role is asked for
    progress: StartupProgress = field(default_factory=lambda: StartupProgress(Phase.STARTING))
    lines: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    failures: int = 0
    news: list[str] = field(default_factory=list)
    tries: int = 1
    _failed_before: int | None = None
    _state: str = ""

    def add(self, probe: Probe) -> str:
        """Add one probe. Returns `ready`, `refused` (the API serves and refuses the request), `failed` or `waiting`."""
        state = probe.get("state", {})
        failed, self._state = int(state.get("failed") or 0), state.get("state", "")
        # A person who acts, such as the deploy itself, begins the count anew.
        self._failed_before = failed if self._failed_before is None else min(failed, self._failed_before)
        self.failures = failed - self._failed_before
        self.elapsed_s = max(self.elapsed_s if self.failures else 0.0, probe["running_s"])
        self.news = [match[1] for line in probe["lines"] if (match := FAILED_START.search(line))]
        self.tries = max(self.tries + len(self.news), self.failures + 1)
        self.lines = [*self.lines, *probe["lines"]][-KEPT_LINES:]
        self.progress = startup_phases.advance(self.progress, probe["lines"])
        if ready.is_ready(probe):
            self.progress = StartupProgress(Phase.SERVING)
            return "ready"
        if ready.is_definite(probe):
            return "refused"
        down = probe["unit"].get("ActiveState") in {"failed", "inactive"} or self._state == GAVE_UP
        if down or self.failures >= ATTEMPTS:
            return "failed"
        if self.failures and self.known_cause():
            return "failed"
        return "waiting"

    def known_cause(self) -> bool:
        """Return True if the log so far shows a cause that a restart does not remove."""
        finding = diagnosis.root_cause(self.lines)
        return finding is not None and finding.signature not in _undecided()

    def headline(self) -> str:
        """Return the progress line that an operator sees. While starts fail it does not say that one is under way."""
        if self._state == FAILED:
            return f"the start has failed, and begins again ({nth(self.tries)} try)"
        return ("" if self.tries == 1 else f"{nth(self.tries)} try: ") + startup_phases.headline(
            self.progress, self.elapsed_s, self.deadline_s
        )


def failure(watch: StartupWatch, unit: str, place: Place) -> NotServingError:
    """Return why a start at a place failed: the root cause, the fix, and the command that shows the log."""
    host = place.host
    if not watch.lines:
        fix = Fix(place.fill("ansible-playbook deploy.yml -l HOST"))
        refusal = ENGINE_FAILED_TO_START(
            what=f"{unit} does not run on {host}",
            expected="a running unit",
            fix=fix,
        )
        return NotServingError(str(refusal), remoteness(None))
    finding = diagnosis.root_cause(watch.lines, place)
    if finding is None:
        fix = Fix(f"ssh -t {host} sudo /etc/vllm-spark/{deployment_of(unit)}/launch", "Read its output.")
        explained = str(
            ENGINE_FAILED_TO_START(
                what=f"{unit} ended without naming a cause",
                expected="a running unit",
                fix=fix,
            )
        )
    else:
        explained = explain(finding)
    return NotServingError(f"{explained} {log_place(unit, host)}", remoteness(finding))


def overdue(watch: StartupWatch, unit: str, host: str) -> NotServingError:
    """Return why waiting ended: the deadline, and the phase that the start had reached."""
    what = f"{unit} gave no {watch.word} within {watch.deadline_s:.0f} s; it was {watch.headline()}"
    fix = (
        "the same command again, if the machine was busy; if the phase still moves then, raise gates.ready.deadline_s."
    )
    refusal = NOT_READY_IN_TIME(what=what, expected=f"a {watch.word} by then", fix=fix)
    return NotServingError(f"{refusal!s} {log_place(unit, host)}", remoteness(None))


def next_step(missed: str, correction: str) -> str:
    """Return what to do after a failed deploy: a start that only took too long says nothing against its recipe."""
    slow = f"docs/runbooks/{NOT_READY_IN_TIME.runbook}" in missed
    return f"if the machine was busy, the same command again; otherwise {correction}" if slow else correction


def first_causes(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return by host what its rank missed. `results` are those of vllm_verify on the hosts of one deployment, empty
    where it was skipped.

    A rank whose log is further from the cause, as one that shows only that the other rank was lost, has the message of
    the rank whose log shows it. A gate that a serving rank missed is a cause of its own."""
    missed = {
        host: (int(result.get("remoteness", 0)), str(result.get("missed", ""))) for host, result in results.items()
    }
    nearest, first = min((own for own in missed.values() if own[1]), default=(0, ""))
    return {
        host: first if text and nearest <= MOST_OF_A_CAUSE and nearest < distance else text
        for host, (distance, text) in missed.items()
    }


def log_place(unit: str, host: str) -> str:
    """Return the command that shows the log."""
    return f"Log: ssh -t {host} sudo journalctl -u {unit} -e"
