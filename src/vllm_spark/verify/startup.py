"""Follows the start of a deployment: what each probe means, and when to stop waiting. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from vllm_spark.core.refusal import Fix, register
from vllm_spark.doctor import diagnosis
from vllm_spark.doctor.families import families
from vllm_spark.doctor.findings import MOST_OF_A_CAUSE, UNRECOGNISED, explain, remoteness
from vllm_spark.doctor.places import Place
from vllm_spark.node.host_layout import deployment_of
from vllm_spark.verify import startup_phases
from vllm_spark.verify.gates import ready
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.startup_phases import Phase, StartupProgress

ENGINE_FAILED_TO_START = register("engine-failed-to-start", runbook="engine-failed-to-start")
NOT_READY_IN_TIME = register("not-ready-in-time", runbook="not-ready-in-time")

# An engine that ends for an unknown reason may be restarted once by systemd: a first, compiling start profiles a higher
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
            *(family.id for family in families() if family.transient),
        )
    )


@dataclass(slots=True)
class StartupWatch:
    """The state of one start, accumulated over probes. Times are in seconds."""

    deadline_s: float
    progress: StartupProgress = field(default_factory=lambda: StartupProgress(Phase.STARTING))
    lines: list[str] = field(default_factory=list)
    restarts_before: int | None = None
    elapsed_s: float = 0.0

    def add(self, probe: Probe) -> str:
        """Add one probe. Returns `ready`, `refused` (the API serves and gives no token), `failed` or `waiting`."""
        unit = probe["unit"]
        restarts = int(unit.get("NRestarts") or 0)
        if self.restarts_before is None:
            self.restarts_before = restarts
        died = restarts - self.restarts_before
        self.elapsed_s = max(self.elapsed_s if died else 0.0, probe["running_s"])
        self.lines = [*self.lines, *probe["lines"]][-KEPT_LINES:]
        self.progress = startup_phases.advance(self.progress, probe["lines"])
        if ready.is_ready(probe):
            self.progress = StartupProgress(Phase.SERVING)
            return "ready"
        if ready.is_definite(probe):
            return "refused"
        if unit.get("ActiveState") in {"failed", "inactive"} or died >= ATTEMPTS:
            return "failed"
        if died and self.known_cause():
            return "failed"
        return "waiting"

    def known_cause(self) -> bool:
        """Return True if the log so far shows a cause that a restart does not remove."""
        finding = diagnosis.root_cause(self.lines)
        return finding is not None and finding.signature not in _undecided()

    def headline(self) -> str:
        """Return the progress line that an operator sees."""
        return startup_phases.headline(self.progress, self.elapsed_s, self.deadline_s)


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
    what = f"{unit} gave no token within {watch.deadline_s:.0f} s; it was {watch.headline()}"
    fix = "if the phase still moves, raise gates.ready.deadline_s of the recipe."
    refusal = NOT_READY_IN_TIME(what=what, expected="a token by then", fix=fix)
    return NotServingError(f"{refusal!s} {log_place(unit, host)}", remoteness(None))


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
