"""Matches of signatures: the fixed texts that are searched first, and the finding of a match."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from vllm_spark.doctor.findings import Finding
from vllm_spark.doctor.signatures import Signature, signatures
from vllm_spark.doctor.tracebacks import NO_DIGITS


def kinds(text: str) -> str:
    """Return every kind of line once, without its digits. A large log repeats a few lines, and it takes longer to
    search all of it for a hundred texts than to reduce it first."""
    return "\n".join(set(text.translate(NO_DIGITS).split("\n")))


@cache
def literals() -> list[tuple[Signature, tuple[str, ...]]]:
    """Return each signature with its fixed texts without digits."""
    return [(sign, tuple(fixed.translate(NO_DIGITS) for fixed in sign.literals)) for sign in signatures()]


def finding_of(signature: Signature, match: re.Match[str], file: str, number: int) -> Finding:
    """Return the finding of a match, which begins at this line."""
    values = [match[0], *match.groups(default="")]
    texts, special = signature.texts(match[0])
    names: dict[str, Any] = match.groupdict(default="") | special
    return Finding(
        signature=signature.id,
        # The groups of other alternatives are empty and leave gaps in the sentence.
        cause=" ".join(texts.cause.format(*values, **names).split()),
        line=_line_at(match.string, match.start()),
        fix=texts.fix.format(*values, **names),
        runbook=texts.runbook,
        severity=signature.severity,
        file=file,
        number=number,
    )


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()
