"""A score of the doctor on logs that no rule was written for, counted without reading them.

A judgement is `right` if the first finding names a remedy of what its owner needed: a setting or variable by its name,
or a subject and what to do with it. A program compares words, so the figure is a proxy: by hand, 22 of the 93 logs that
may be read were right before the first rule, where it counts 25.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import project_files
from vllm_spark.core import strict_yaml
from vllm_spark.doctor import command
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import AREA, UNRECOGNISED, Finding, Judgement
from vllm_spark.doctor.log import Log

# near: the part of the engine or the kind of fault is right, its remedy is not; unknown: no cause is named.
VERDICTS = ("right", "near", "wrong", "unknown", "all-clear")

_WORDS = strict_yaml.load_own((project_files.DATA / "doctor-unseen-words.yml").read_text(encoding="utf-8"))
_REMEDIES = {name: re.compile(pattern) for name, pattern in _WORDS["remedies"].items()}
# A name of a setting: two words joined, or a variable.
_NAME = re.compile(r"\b[a-z]+(?:[-_][a-z0-9]+)+\b|\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_WORD = re.compile(r"[a-z]{4,}")
_STEM = 6
_COMMON = {word[:_STEM] for word in _WORDS["common"].split()}


def judged(name: str, log: str) -> tuple[Log, Judgement]:
    """Return a log that was read, and its judgement."""
    read = Log(name)
    read.read(log)
    return read, judge([read])


def verdict(entry: Mapping[str, Any]) -> tuple[str, Finding | None]:
    """Return the verdict of a failure, and the doctor's first finding."""
    log, judgement = judged(str(entry["id"]), str(entry["log"]))
    first = next(iter((*judgement.findings, *judgement.unrecognised)), None)
    if first is None:
        return ("unknown" if command.unknown(judgement, [log]) else "all-clear"), None
    if first.signature == UNRECOGNISED:
        return "unknown", first
    if is_right(entry, first):
        return "right", first
    vague = first.signature.startswith(AREA) or first.severity not in {"cause", "warning"}
    return ("near" if vague or re.search(_WORDS["kinds"][entry["kind"]], first.signature) else "wrong"), first


def is_right(entry: Mapping[str, Any], finding: Finding) -> bool:
    """Return True if the finding's fix has a setting or a telling remedy of what was needed, or a general one and two
    words of the cause."""
    needed, fix = str(entry["needed"]), finding.fix
    if _names(needed) & _names(fix):
        return True
    common = _remedies(needed) & _remedies(fix)
    if common - set(_WORDS["general"]):
        return True
    said = finding.cause.replace(finding.line.partition(": ")[2] or finding.line, "")
    return bool(common) and len(_stems(f"{entry['cause']} {needed}") & _stems(f"{said} {fix}")) >= 2


def _names(text: str) -> set[str]:
    return {match[0].lower().replace("_", "-").removeprefix("no-") for match in _NAME.finditer(text)}


def _remedies(text: str) -> set[str]:
    # "not memory: restart" and "not the cable" are no remedies.
    low = re.sub(r"\bnot (?:the |a |in )?[\w' ]+", " ", text.lower()).replace("_", "-")
    return {name for name, pattern in _REMEDIES.items() if pattern.search(low)}


def _stems(text: str) -> set[str]:
    return {word[:_STEM] for word in _WORD.findall(text.lower())} - _COMMON


def counts(entries: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of each verdict."""
    return Counter(verdict(entry)[0] for entry in entries)


def wrong_kinds(entries: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how many of each kind of fault are not right: a kind is shown as a number only."""
    return Counter(str(entry["kind"]) for entry in entries if verdict(entry)[0] != "right")


SOUND_START = ("INFO:     Started server process [1]", "INFO:     Application startup complete.")


def after_a_good_start(lines: Iterable[str]) -> Iterator[int]:
    """Yield the doctor's exit status of each line that follows the lines of a sound server."""
    for line in lines:
        log, judgement = judged("engine.log", "\n".join([*SOUND_START, line]) + "\n")
        yield command.UNKNOWN if command.unknown(judgement, [log]) else command.status(judgement)


def alarms(entries: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of sound logs with a finding or an unknown error."""
    judgements = [judged(str(entry["id"]), str(entry["log"]))[1] for entry in entries]
    return sum(bool(judgement.findings or judgement.unrecognised) for judgement in judgements)
