"""Families of causes (families.yml) for exceptions and error lines that no signature explains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from vllm_spark.doctor import rule_files
from vllm_spark.doctor.areas import area_by_words, area_of, areas, kind_texts
from vllm_spark.doctor.tracebacks import CUDA_FAULT

_NAME = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?: ")
# A frame of the drafter's own code, and the families whose causes are the drafter's if it called them.
_DRAFTER = re.compile(r"vllm/(?:v1/spec_decode/|v1/worker/gpu/spec_decode|\S*(?:_mtp|/mtp|eagle\d?|medusa)\.py)")
_UNDER_DRAFTER = frozenset({"kernel-fails"})
_LINE = 2000  # characters of a line that are searched
_SENTENCE = 300  # characters of a message within a cause


# What else a log has: the patterns of `notes`, with the named groups of their first matches.
Evidence = frozenset[tuple[re.Pattern[str], tuple[tuple[str, str], ...]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a family. Its texts are str.format templates over the named groups and {sentence}. `in_log`: the rule
    counts only in a log that also has this, whose named groups are values too."""

    cause: str
    fix: str
    line: re.Pattern[str] | None = None
    frames: re.Pattern[str] | None = None
    in_log: re.Pattern[str] | None = None
    exception_only: bool = False
    after_areas: bool = False  # so loose that an area of the engine names the cause better

    def values(self, line: str, frames: str, evidence: Evidence, *, raised: bool) -> dict[str, str] | None:
        """Return the values of the templates, or None if the rule does not match."""
        beside = next((dict(found) for note, found in evidence if note is self.in_log), None)
        if (self.exception_only and not raised) or (self.in_log and beside is None):
            return None
        groups: dict[str, str] = beside or {}
        for pattern, text in ((self.line, line), (self.frames, frames)):
            if pattern is None:
                continue
            match = pattern.search(text)
            if not match:
                return None
            groups |= {name: value[:_SENTENCE] for name, value in match.groupdict(default="").items()}
        return {"sentence": sentence(line)} | groups


@dataclass(frozen=True, slots=True)
class Family:
    """A family of causes. `transient`: a second start of the same launch can succeed."""

    id: str
    runbook: str
    source: str
    example: str
    rules: tuple[Rule, ...]
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a family says of an exception or an error line."""

    family: Family
    cause: str
    fix: str


def classify(
    line: str, frames: Sequence[str] = (), evidence: Evidence = frozenset(), *, raised: bool = True
) -> Diagnosis | None:
    """Return the diagnosis of the first rule that matches, or None. `raised` is False for a line that is not an
    exception; `evidence` is what else its log has of `notes`, with the named groups."""
    return _classify(line[:_LINE], tuple(frames), evidence, raised=raised)


@lru_cache(maxsize=256)  # a log is asked for its findings several times
def _classify(line: str, frames: tuple[str, ...], evidence: Evidence, *, raised: bool) -> Diagnosis | None:
    joined = "\n".join(frames)
    early = _first(line, joined, evidence, raised=raised, after_areas=False)
    # A kernel, a layer or the cache fails under the drafter's code: the drafter is the part to leave out.
    if early is None or early.family.id in _UNDER_DRAFTER:
        drafter = next((frame for frame in frames if _DRAFTER.search(frame)), "")
        if raised and drafter and not CUDA_FAULT.search(line):
            early = _of_area("area-drafter", line, [drafter])
    late = early or _of_area(area_of(frames), line, frames)
    late = late or _first(line, joined, evidence, raised=raised, after_areas=True)
    return late or (_of_area(area_by_words(line), line, frames) if raised else None)


def _first(line: str, frames: str, evidence: Evidence, *, raised: bool, after_areas: bool) -> Diagnosis | None:
    for family, rule in _rules(after_areas=after_areas):
        values = rule.values(line, frames, evidence, raised=raised)
        if values is not None:
            return _diagnosis(family, rule, values)
    return None


def _of_area(area: str, line: str, frames: Sequence[str]) -> Diagnosis | None:
    if not area:
        return None
    family = next(family for family in families() if family.id == area)
    if texts := kind_texts(area, line, frames, sentence(line)):
        return Diagnosis(family, _one_line(texts[0]), texts[1])
    return _diagnosis(family, family.rules[0], {"sentence": sentence(line)})


def _diagnosis(family: Family, rule: Rule, values: dict[str, str]) -> Diagnosis:
    return Diagnosis(family, _one_line(rule.cause.format(**values)), " ".join(rule.fix.format(**values).split()))


def _one_line(cause: str) -> str:
    return " ".join(cause.split()).rstrip(".:")


def sentence(line: str) -> str:
    """Return the message of an exception line without its name, or the whole line if it has no message."""
    text = _NAME.sub("", line, count=1).strip() or line
    return text if len(text) <= _SENTENCE else f"{text[:_SENTENCE]} …"


@cache
def families() -> tuple[Family, ...]:
    """Load the families in the order of their file, then the areas as families. Raises TypeError, KeyError or re.error
    on a malformed file."""
    entries = rule_files.load("families")["families"]
    named = [Family(**{**entry, "rules": tuple(_rule(**rule) for rule in entry["rules"])}) for entry in entries]
    return (*named, *map(_area, areas()))


def _area(entry: dict[str, Any]) -> Family:
    fields = {name: value for name, value in entry.items() if name not in {"paths", "words", "part", "cause", "fix"}}
    # The cause within an area is unknown, so that a second start may succeed.
    return Family(**fields, rules=(Rule(entry["cause"], entry["fix"]),), transient=True)


@cache
def _rules(*, after_areas: bool) -> tuple[tuple[Family, Rule], ...]:
    """Return the rules that have a pattern, in their order."""
    return tuple(
        (family, rule)
        for family in families()
        for rule in family.rules
        if (rule.line or rule.frames) and rule.after_areas == after_areas
    )


@cache
def notes() -> tuple[re.Pattern[str], ...]:
    """Return what a log is searched for because a rule depends on it."""
    return tuple({rule.in_log for family in families() for rule in family.rules if rule.in_log})


def _rule(*, cause: str, fix: str, line: str = "", frames: str = "", in_log: str = "", **fields: Any) -> Rule:
    def compiled(pattern: str) -> re.Pattern[str] | None:
        return re.compile(pattern, re.MULTILINE) if pattern else None

    return Rule(cause, fix, compiled(line), compiled(frames), compiled(in_log), **fields)
