"""Known issues of recipes/compatibility.yml in a log: `error` names the line, the conditions the version and model.

An issue that fits the log says more than the general text of a signature or family, and names the versions in the same
words as `check` and `plan`. A signature whose pattern alone proves an issue names it, and has its fix in every log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from vllm_spark.doctor.findings import AREA, UNRECOGNISED, Finding
from vllm_spark.recipe import conditions, known_issues

RUNBOOK = "known-issue.md"
_VERSION = re.compile(r"(?:server version|[█▀▄] +version|LLM engine \(v|vLLM version:?) ?v?(\d+\.\d+\.\d+[\w.+]*)")
_MODEL = re.compile(r"(?:\bmodel=|'model(?:_tag)?': )'([^']+)'| model {2,}(\S+)")
_PARTS = re.compile(r"; |,? or an? ")  # between the lines of one `error`
_GAPS = re.compile(r"\\?…|%s")
_FIXED = 12  # characters of a line besides its gaps; fewer could be in any line
# Conditions that no log tells.
_UNKNOWN = frozenset({"image", "pip", "mount"})


@dataclass(slots=True)
class Engine:
    """What a log says of the engine: its version and its model, each "" if unknown."""

    version: str = ""
    model: str = ""

    def read(self, text: str) -> None:
        """Read a block of a log. The first version and the first model count."""
        if not self.version and (match := _VERSION.search(text)):
            self.version = match[1]
        if not self.model and (match := _MODEL.search(text)):
            self.model = match[1] or match[2]


def explained(finding: Finding, engine: Engine) -> Finding:
    """Return the finding with the texts of a known issue that its line and its log have, or as it is."""
    vague = finding.signature == UNRECOGNISED or finding.signature.startswith(AREA)
    for issue, lines in _known():
        if any(line.search(finding.line) for line in lines):
            fits = _fits(issue, engine)
            if fits or (vague and fits is None):
                name = issue.id if vague else finding.signature
                cause = f"{issue.what} (known issue {issue.id})"
                return replace(finding, signature=name, cause=cause, fix=fix_of(issue.id), runbook=RUNBOOK)
    return finding


def contradicted(name: str, engine: Engine) -> bool:
    """Return True if a log contradicts every known issue whose id begins with this name."""
    return bool(name) and all(_fits(one, engine) is False for one in known_issues.load() if one.id.startswith(name))


def fix_of(issue: str) -> str:
    """Return the alternative of a known issue as a fix. Raises ValueError if there is no such issue."""
    for one in known_issues.load():
        if one.id == issue:
            return f"{one.instead}."
    raise ValueError(f"{issue} is no issue of recipes/compatibility.yml")


def _fits(issue: known_issues.KnownIssue, engine: Engine) -> bool | None:
    """Return False if the log contradicts the conditions of an issue, None if it does not tell all of them."""
    told: list[bool | None] = [None for name in issue.when if name in _UNKNOWN]
    if "engine" in issue.when:
        told.append(conditions.version_matches(issue.when["engine"], engine.version) if engine.version else None)
    if "model" in issue.when:
        # The engine may name a folder of a cache, models--OWNER--NAME.
        name = re.sub(r".*models--|--", lambda match: "/" if match[0] == "--" else "", engine.model)
        told.append(bool(re.search(issue.when["model"], name)) if name else None)
    return False if False in told else None if None in told else True


@cache
def _known() -> Sequence[tuple[known_issues.KnownIssue, Sequence[re.Pattern[str]]]]:
    """Return the issues with the lines by which a log has them."""
    return [(issue, list(map(_pattern, parts))) for issue in known_issues.load() if (parts := lines_of(issue))]


def lines_of(issue: known_issues.KnownIssue) -> list[str]:
    """Return the lines of the `error` of an issue."""
    return [part for part in _PARTS.split(issue.error) if len(_GAPS.sub("", part)) >= _FIXED]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*?".join(map(re.escape, _GAPS.split(line))))
