"""Findings of lines that no signature explains: of a family, or of none."""

from __future__ import annotations

from dataclasses import replace

from vllm_spark.core import text
from vllm_spark.doctor import failure_lines, families
from vllm_spark.doctor.findings import GENERIC_FIX, GENERIC_RUNBOOK, UNRECOGNISED, Finding


def unrecognised(cause: str, line: str, number: int, file: str) -> Finding:
    """Return the finding of a line that nothing explains."""
    return Finding(UNRECOGNISED, cause, line, GENERIC_FIX, GENERIC_RUNBOOK, file=file, number=number)


def familiar(known: families.Diagnosis, line: str, number: int, file: str) -> Finding:
    """Return the finding of a line that a family explains."""
    family = known.family
    return Finding(family.id, known.cause, line, known.fix, family.runbook, file=file, number=number)


def exception(line: str, number: int, file: str) -> Finding:
    """Return the finding of an exception that nothing explains."""
    name = line.partition(":")[0].rpartition(".")[2]
    cause = f"the engine stopped with {text.with_article(name)} that no signature knows"
    return unrecognised(cause if name.isidentifier() else failure_lines.WORKER_FAILED, line, number, file)


def logged(line: str, number: int, file: str) -> Finding:
    """Return the finding of an error line that is not an exception, before any family is asked."""
    cause = failure_lines.FATAL_CAUSE if failure_lines.FATAL.search(line) else failure_lines.LOGGED
    return unrecognised(cause, line, number, file)


def explained(found: Finding, evidence: families.Evidence) -> Finding:
    """Return the finding of an error line as its family explains it, or as it is."""
    if found.cause not in failure_lines.UNKNOWN:
        return found
    known = families.classify(found.line, evidence=evidence, raised=False)
    return replace(familiar(known, found.line, found.number, found.file), count=found.count) if known else found
