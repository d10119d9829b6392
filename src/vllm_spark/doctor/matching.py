"""Matches of signatures: the fixed texts that are searched first, and the finding of a match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from vllm_spark.doctor import families
from vllm_spark.doctor.findings import Finding
from vllm_spark.doctor.signatures import Signature, alternatives, literal, signatures
from vllm_spark.doctor.signatures import notes as signature_notes
from vllm_spark.doctor.tracebacks import NO_DIGITS

_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*)$", re.MULTILINE)
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')


def kinds(text: str) -> str:
    """Return every kind of line once, without its digits. A large log repeats a few lines, and it takes longer to
    search all of it for a hundred texts than to reduce it first."""
    return "\n".join(set(text.translate(NO_DIGITS).split("\n")))


@cache
def literals() -> list[tuple[Signature, tuple[str, ...]]]:
    """Return each signature with its fixed texts without digits."""
    return [(sign, tuple(fixed.translate(NO_DIGITS) for fixed in sign.literals)) for sign in signatures()]


@cache
def notes() -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
    """Return what a log is searched for only because a signature or a family depends on it, with its fixed texts."""
    found = {*signature_notes(), *families.notes()}
    return [(note, tuple(literal(one).translate(NO_DIGITS) for one in alternatives(note.pattern))) for note in found]


def finding_of(signature: Signature, match: re.Match[str], file: str, numbers: Sequence[int]) -> Finding:
    """Return the finding of a match, whose lines have these numbers."""
    values = [match[0], *match.groups(default="")]
    texts, special = signature.texts(match[0])
    names: dict[str, Any] = match.groupdict(default="") | special
    found = Finding(
        signature=signature.id,
        # The groups of other alternatives are empty and leave gaps in the sentence.
        cause=" ".join(texts.cause.format(*values, **names).split()),
        line=_line_at(match.string, match.start()),
        fix=texts.fix.format(*values, **names),
        runbook=texts.runbook,
        severity=signature.severity,
        file=file,
        number=numbers[0],
    )
    return _of_exception(found, match[0], numbers) if signature.exception else found


def _of_exception(found: Finding, matched: str, numbers: Sequence[int]) -> Finding:
    """Return a finding with the cause, the fix and the line of the first exception in its match."""
    above, line, _ = _RAISED.split(matched, maxsplit=1)
    frames = [f"{file} {function}" for file, function in _FRAME.findall(above)]
    known = families.classify(line, frames)
    found = replace(found, line=line, number=numbers[above.count("\n")])
    if not known:
        return found
    return replace(found, cause=f"{found.cause}: {known.cause}", fix=known.fix, runbook=known.family.runbook)


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()
