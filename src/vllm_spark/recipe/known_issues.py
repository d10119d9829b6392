"""Known issues: what an engine, an image and a model cannot do together, from recipes/compatibility.yml."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document

BAD_COMPATIBILITY = register("bad-compatibility", runbook="recipe-refused")
UNKNOWN_KNOWN_ISSUE = register("unknown-known-issue", runbook="known-issue")

FILE = paths.RECIPES / "compatibility.yml"

Conditions = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """One entry of the file."""

    id: str
    level: str  # refuse or warn
    what: str
    when: Conditions
    error: str
    instead: str
    source: str
    unless: Sequence[Conditions] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """What the conditions are asked of: a recipe with its overrides, the names of the secrets, the API's address."""

    recipe: Document
    secrets: Collection[str] = ()
    bind: str = "0.0.0.0"  # noqa: S104  a deployment's default


@lru_cache
def load(file: Path = FILE) -> tuple[KnownIssue, ...]:
    """Read and check the file. Raises RefusedError with every fault found."""
    from vllm_spark.core import schema  # noqa: PLC0415  jsonschema takes a tenth of a second to import

    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    faults = list(schema.faults(document, paths.RECIPES / "compatibility.schema.json"))
    if faults:
        raise RefusedError(
            BAD_COMPATIBILITY(
                what=f"{file.name}: {fault}",
                expected="known issues as recipes/compatibility.schema.json describes them",
                fix=f"correct {file.name}.",
            )
            for fault in faults
        )
    return tuple(KnownIssue(**entry) for entry in document["issues"])


def matching_issues(subject: Subject, issues: Sequence[KnownIssue] | None = None) -> list[KnownIssue]:
    """The issues that this recipe has, in the file's order."""
    return [issue for issue in (load() if issues is None else issues) if applies(issue, subject)]


def applies(issue: KnownIssue, subject: Subject) -> bool:
    """All of `when`, and no set of `unless`."""
    return conditions_match(issue.when, subject) and not any(conditions_match(set_, subject) for set_ in issue.unless)


def conditions_match(conditions: Conditions, subject: Subject) -> bool:
    return all(CONDITIONS[name](wanted, subject) for name, wanted in conditions.items())


def refusals(subject: Subject, accepted: Collection[str]) -> Iterator[Refusal]:
    """A refusal per issue that nobody has accepted, and one per accepted id that no issue has."""
    name, version = subject.recipe["name"], subject.recipe["engine"]["version"]
    for issue in matching_issues(subject):
        if issue.level == "refuse" and issue.id not in accepted:
            shown = f', which shows as "{issue.error}"' if issue.error else ""
            yield register(issue.id, runbook="known-issue")(
                what=f"recipe {name} with vLLM {version}: {issue.what}{shown} (known issue {issue.id}, {issue.source})",
                expected="a combination that nobody has seen fail",
                fix=f"{issue.instead}. To try it all the same: -e accept_known_issue={issue.id}.",
            )
    known = [issue.id for issue in load()]
    for unknown in sorted(set(accepted) - set(known)):
        yield UNKNOWN_KNOWN_ISSUE(
            what=f"accept_known_issue names {unknown}",
            expected="an id of recipes/compatibility.yml",
            fix=f"name one of {', '.join(known)}.",
        )


def notes(subject: Subject, accepted: Collection[str]) -> list[str]:
    """What an operator should know of a deployment that is not refused."""
    issues = matching_issues(subject)
    warned = [f"{issue.what}: {issue.instead} ({issue.id})" for issue in issues if issue.level == "warn"]
    return warned + [f"accepted known issue {issue.id}: {issue.what}" for issue in issues if issue.id in accepted]


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 20, 2) of 0.20.2rc1.dev49+g9b4e83934."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _engine(wanted: Mapping[str, str], subject: Subject) -> bool:
    version = subject.recipe["engine"]["version"]
    if "or_builds" in wanted and re.search(wanted["or_builds"], version):
        return True
    since, below = _numbers(wanted.get("since", "0.0.0")), _numbers(wanted.get("below", "999.0.0"))
    return since <= _numbers(version) < below


def _drafter(wanted: str, subject: Subject) -> bool:
    drafter = subject.recipe.get("drafter")
    return drafter is not None and (wanted == "any" or drafter["repository"].endswith("-assistant"))


def _settings(block: str) -> Callable[[Any, Subject], bool]:
    def judge(wanted: Mapping[str, Mapping[str, Any]], subject: Subject) -> bool:
        given = subject.recipe.get(block, {})
        return all(
            (name in given) == rule["set"] if "set" in rule else given.get(name) == rule["is"]
            for name, rule in wanted.items()
        )

    return judge


def _pins(subject: Subject) -> Sequence[str]:
    return subject.recipe["image"].get("derive", {}).get("pip", [])  # type: ignore[no-any-return]


def _image(document: Document) -> str:
    return f"{document['image']['repository']}:{document['image']['tag']}"


CONDITIONS: Mapping[str, Callable[[Any, Subject], bool]] = {
    "engine": _engine,
    "model": lambda wanted, subject: bool(re.search(wanted, subject.recipe["model"]["repository"])),
    "image": lambda wanted, subject: bool(re.search(wanted, _image(subject.recipe))),
    "drafter": _drafter,
    "nodes": lambda wanted, subject: bool(subject.recipe["topology"]["nodes"] == wanted),
    "executor": lambda wanted, subject: bool(subject.recipe["topology"]["executor"] == wanted),
    "args": _settings("args"),
    "env": _settings("env"),
    "bind": lambda wanted, subject: bool(subject.bind == wanted),
    "secret": lambda wanted, subject: wanted in subject.secrets,
    "pip": lambda wanted, subject: any(re.search(wanted, pin) for pin in _pins(subject)),
    "mount": lambda wanted, subject: any(re.search(wanted, m["target"]) for m in subject.recipe.get("mounts", [])),
    "deadline_below": lambda wanted, subject: bool(subject.recipe["gates"]["ready"]["deadline_s"] < wanted),
}
