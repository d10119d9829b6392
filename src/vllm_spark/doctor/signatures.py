"""Known causes of signatures.yml, and the fixed texts that are searched before their patterns are tried."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from vllm_spark.doctor import issues, rule_files
from vllm_spark.doctor.findings import Finding
from vllm_spark.recipe import variable_owners

SHORTEST = 4  # characters of the fixed text that begins each alternative of a pattern
# `cause` ends a start or a server by itself; `consequence` follows from another fault, often of another Spark;
# `symptom` says only that another process failed or hangs, so that any exception explains more;
# with a `warning` the server runs, slowly, wrongly or not for long. Findings are listed in this order.
SEVERITIES = ("cause", "consequence", "symptom", "warning")

# In a pattern: the variables that images set for themselves.
IMAGE_VARIABLES = "IMAGE_VARIABLES"

_LOOK_BEHIND = re.compile(r"\(\?<[!=][^()]*\)")
_LITERAL = re.compile(r"\\([^\w\s])|([^\\.^$*+?{}\[\]|()])")
# Docker's json-file log escapes these characters, so a fixed text ends before them.
_ESCAPED = re.compile(r'["<>&\\].*')


@dataclass(frozen=True, slots=True)
class Texts:
    """What a finding says, as str.format templates."""

    cause: str
    fix: str
    runbook: str


@dataclass(frozen=True, slots=True)
class SpecialCase:
    """Texts for the matches of a signature that also match `when`, or for a log that also has `in_log`."""

    texts: Texts
    when: re.Pattern[str] | None = None
    in_log: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Signature:
    """A known cause. Its texts are str.format templates over the match: {name}, {1}, {0} the whole."""

    id: str
    severity: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    runbook: str
    source: str
    example: str
    versions: str = ""
    at_least: int = 1  # lines of one log; fewer are normal
    amount: str = ""  # the group whose numbers count in place of lines
    explains_symptoms: bool = False  # with a symptom in the log this warning is its cause
    cases: tuple[SpecialCase, ...] = ()
    exception: bool = False  # its cause and fix are those of the exception in the match, if a family knows it
    at_end: bool = False  # counts only near the end of a log: the next lines are missing
    or_at_end: bool = False  # fewer lines count there
    issue: str = ""  # a known issue, whose alternative is the fix
    unless: re.Pattern[str] | None = None  # does not count in a log that also has this

    def texts(self, matched: str) -> tuple[Texts, dict[str, str]]:
        """Return the texts for a match, and the named groups of the special case, if one applies."""
        for case in self.cases:
            if case.when and (found := case.when.search(matched)):
                return case.texts, found.groupdict(default="")
        return Texts(self.cause, self.fix, self.runbook), {}

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The fixed text at the start of each alternative of the pattern. A log without any of them has no match."""
        return tuple(literal(alternative) for alternative in alternatives(self.pattern.pattern))


@dataclass(frozen=True, slots=True)
class Harmless:
    """A line that looks like a fault and is harmless."""

    pattern: re.Pattern[str]
    why: str
    source: str
    example: str


def alternatives(pattern: str) -> list[str]:
    """Split a regular expression at each | outside of groups and sets."""
    parts = [""]
    depth = 0
    in_set = False
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        in_set = (part == "[" or in_set) and part != "]"
        if not in_set:
            depth += (part == "(") - (part == ")")
        if part == "|" and not depth and not in_set:
            parts.append("")
        else:
            parts[-1] += part
    return parts


def literal(alternative: str) -> str:
    """Return the fixed text at the start of a regular expression."""
    rest = _LOOK_BEHIND.sub("", alternative, count=1) if alternative.startswith("(?<") else alternative
    text = ""
    while match := _LITERAL.match(rest):
        rest = rest[match.end() :]
        if rest[:1] in ("?", "*", "{"):
            break
        text += match[1] or match[2]
    return _ESCAPED.sub("", text)


@cache
def signatures() -> tuple[Signature, ...]:
    """Load the known causes, sorted by severity. Raises TypeError, ValueError or re.error on a
    malformed file."""
    loaded = [_signature(**entry) for entry in rule_files.load("signatures")["signatures"]]
    return tuple(sorted(loaded, key=lambda signature: SEVERITIES.index(signature.severity)))


@cache
def harmless() -> tuple[Harmless, ...]:
    """Load the harmless lines."""
    return tuple(
        Harmless(re.compile(entry["pattern"]), entry["why"], entry["source"], entry["example"])
        for entry in rule_files.load("signatures")["harmless"]
    )


def is_harmless(text: str) -> bool:
    """Return True if the text is a known harmless line."""
    return any(line.pattern.search(text) for line in harmless())


def is_beside(text: str) -> bool:
    """Return True if the text is one of those that the engine prints beside any failure."""
    return any(re.search(pattern, text) for pattern in rule_files.load("signatures")["beside"])


@cache
def notes() -> tuple[re.Pattern[str], ...]:
    """Return what a log is searched for only because a signature depends on it."""
    cases = (case.in_log for signature in signatures() for case in signature.cases)
    return tuple({pattern for pattern in (*cases, *(signature.unless for signature in signatures())) if pattern})


@cache
def _explainers() -> frozenset[str]:
    return frozenset(signature.id for signature in signatures() if signature.explains_symptoms)


def with_causes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with a warning as cause that explains symptoms, if they have no other cause."""
    severities = {finding.severity for finding in findings}
    if "cause" in severities or not severities & {"consequence", "symptom"}:
        return list(findings)
    return [replace(one, severity="cause") if one.signature in _explainers() else one for one in findings]


def _signature(
    *,
    pattern: str,
    cases: Sequence[Mapping[str, str]] = (),
    unless: str | None = None,
    issue: str | None = None,
    **fields: Any,
) -> Signature:
    if issue:
        fields["issue"] = issue
        fields["fix"] = issues.fix_of(issue).replace("{", "{{").replace("}", "}}")
    general = Texts(fields["cause"], fields["fix"], fields["runbook"])
    return Signature(
        pattern=re.compile(pattern.replace(IMAGE_VARIABLES, variable_owners.image_pattern()), re.MULTILINE),
        cases=tuple(_case(general, **case) for case in cases),
        unless=re.compile(unless) if unless else None,
        **fields,
    )


def _case(general: Texts, *, when: str | None = None, in_log: str | None = None, **texts: str) -> SpecialCase:
    return SpecialCase(
        replace(general, **texts),
        when=re.compile(when) if when else None,
        in_log=re.compile(in_log) if in_log else None,
    )
