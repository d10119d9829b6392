"""Findings: what the doctor tells an operator about a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_spark.core.run_command import typed
from vllm_spark.doctor import failure_lines

UNRECOGNISED = "unrecognised"
MOST_OF_A_CAUSE = 1  # remoteness
AREA = "area-"  # how the ids of areas.yml begin
GENERIC_RUNBOOK = "engine-failed-to-start.md"
GENERIC_FIX = failure_lines.FIXES["generic"]
LINE_LIMIT = 300  # characters of the log line in a message; some vLLM errors list every choice


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding in a log. `fix` is without "Fix:"; `runbook` is a file of docs/runbooks; `number` is that of the
    first matching line, 0 if unknown; `count` is the number of matches; `before` has the lines before an error that
    nothing explains."""

    signature: str
    cause: str
    line: str
    fix: str
    runbook: str
    severity: str = "cause"
    file: str = ""
    number: int = 0
    count: int = 1
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """Findings, root cause first, and a few of the errors that no signature explains."""

    findings: tuple[Finding, ...]
    unrecognised: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Return True if something failed, False for warnings only and for no finding."""
        return bool(self.unrecognised) or any(finding.severity != "warning" for finding in self.findings)


def remoteness(finding: Finding | None) -> int:
    """Return how far a finding is from the first cause of a failure. Only findings of several logs are compared: what
    one rank logs can follow from the cause in the log of another one."""
    if finding is None:
        return 4
    if finding.severity != "cause":
        return 3 if finding.severity == "symptom" else 2
    return MOST_OF_A_CAUSE if finding.signature == UNRECOGNISED or finding.signature.startswith(AREA) else 0


def without_areas(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of areas that another one explains: a cause, or an earlier consequence of the
    same log. After a symptom of the same log an area is a symptom too.

    An area names only a part of the engine. The exception of a lost worker, for example, is raised in the engine's
    area.
    """
    precise = [finding for finding in findings if not finding.signature.startswith(AREA)]
    if any(finding.severity == "cause" for finding in precise):
        return precise
    areas = [finding for finding in findings if finding.signature.startswith(AREA)]
    areas = [area for area in areas if not _follows(area, precise, "consequence")]
    return [
        *precise,
        *(replace(area, severity="symptom") if _follows(area, precise, "symptom") else area for area in areas),
    ]


def _follows(area: Finding, findings: Sequence[Finding], severity: str) -> bool:
    """Return True if a finding of this severity is above the finding in the same log."""
    return any(
        finding.severity == severity and finding.file == area.file and finding.number < area.number
        for finding in findings
    )


def explain(finding: Finding) -> str:
    """Return one message to the operator: cause, matching line, fix, runbook."""
    said = f"{finding.cause} — seen: {log_line(finding)}"
    return f"{said} {typed(f'Fix: {finding.fix} See docs/runbooks/{finding.runbook}')}"


def log_line(finding: Finding) -> str:
    """Return the log line, cut to the length of a message."""
    return finding.line if len(finding.line) <= LINE_LIMIT else finding.line[:LINE_LIMIT] + " …"
