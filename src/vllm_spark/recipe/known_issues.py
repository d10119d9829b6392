"""Known issues: combinations of engine, image and model that do not work, from recipes/compatibility.yml.

`refusals` and `notes` are what every command says of a recipe, with what the engine itself refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, paths
from vllm_spark.core.engine_version import numbers
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.ports import ALL_INTERFACES, LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import engine_arguments, flag_types, kept_files
from vllm_spark.recipe.lockfile import locked_name

BAD_COMPATIBILITY = register("bad-compatibility", runbook="recipe-refused")
UNKNOWN_KNOWN_ISSUE = register("unknown-known-issue", runbook="known-issue")

FILE = paths.RECIPES / "compatibility.yml"

KV_CONNECTOR_FLAGS = ("kv-transfer-config", "kv-offloading-size")

# Condition name (a key of CONDITIONS) -> the value that it must have.
Conditions = Document


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """One entry of the file. recipes/compatibility.yml explains the fields."""

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
    """The input of conditions: a recipe with its overrides, the names of the secrets, the API's address, and whether
    the engine is behind the edge."""

    recipe: Document
    secrets: Collection[str] = ()
    bind: str = ALL_INTERFACES
    closed: bool = False


def of_closed(recipe: Document, secrets: Collection[str] | None = None) -> Subject:
    """Return the subject of an engine behind the edge, which has no address on the network. Without `secrets` every
    secret that the recipe names counts as set."""
    return Subject(recipe, recipe.get("secrets", ()) if secrets is None else secrets, LOOPBACK, closed=True)


@lru_cache
def load(file: Path = FILE) -> tuple[KnownIssue, ...]:
    """Read and check the file. Raises RefusedError with every fault of it."""
    from vllm_spark.core import schema  # noqa: PLC0415  importing jsonschema takes a tenth of a second

    try:
        document = documents.read_yaml(file)
        faults = list(schema.faults(document, paths.RECIPES / "compatibility.schema.json"))
    except DocumentError as error:
        faults = [error.fault]
    if faults:
        raise RefusedError(
            BAD_COMPATIBILITY(what=f"{file.name}: {fault.what}", expected=fault.expected, fix=f"correct {file.name}.")
            for fault in faults
        )
    return tuple(issue for entry in document["issues"] for issue in _issues(entry))


def _issues(entry: dict[str, Any]) -> Iterator[KnownIssue]:
    """Yield the issue of an entry, or one for each name in its `each`."""
    each = entry.pop("each", None)
    if each is None:
        yield KnownIssue(**entry)
        return
    for name, settings in each.items():
        yield KnownIssue(**{**entry, "id": name, "what": f"{name} {entry['what']}", "when": {"settings": settings}})


def matching_issues(subject: Subject) -> list[KnownIssue]:
    """Return the issues that apply to a recipe, in the file's order."""
    return [issue for issue in load() if applies(issue, subject)]


def applies(issue: KnownIssue, subject: Subject) -> bool:
    """Return True if all conditions of `when` are true and no set of `unless` is."""
    return conditions_match(issue.when, subject) and not any(conditions_match(set_, subject) for set_ in issue.unless)


def conditions_match(conditions: Conditions, subject: Subject) -> bool:
    """Return True if every condition is true."""
    return all(CONDITIONS[name](value, subject) for name, value in conditions.items())


def refusals(subject: Subject, accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield a refusal per issue that applies and is not accepted, per accepted id that does not exist, and per value
    that the engine refuses or ignores."""
    name, version = subject.recipe["name"], subject.recipe["engine"]["version"]
    for issue in matching_issues(subject):
        if issue.level == "refuse" and issue.id not in accepted:
            symptom = f', which shows as "{issue.error}"' if issue.error else ""
            source = f"known issue {issue.id}, {issue.source}"
            yield register(issue.id, runbook="known-issue")(
                what=f"recipe {name} with vLLM {version}: {issue.what}{symptom} ({source})",
                expected="a combination without a known issue",
                fix=f"{issue.instead}. To deploy it anyway: -e accept_known_issue={issue.id}.",
            )
    known = [*(issue.id for issue in load()), engine_arguments.ENGINE_ARGUMENTS.id]
    for unknown in sorted(set(accepted) - set(known)):
        yield UNKNOWN_KNOWN_ISSUE(
            what=f"accept_known_issue names {unknown}",
            expected="an id of recipes/compatibility.yml",
            fix=f"name one of {', '.join(known)}.",
        )
    yield from engine_arguments.refusals(subject.recipe, accepted)


def notes(subject: Subject, accepted: Collection[str]) -> list[str]:
    """Return the warnings that apply to a deployment, files that it may miss, and the accepted issues, a line each."""
    issues = matching_issues(subject)
    warned = [f"{issue.what}: {issue.instead} ({issue.id})" for issue in issues if issue.level == "warn"]
    warned += [f"{field}: {question}" for field, question in kept_files.questions(subject.recipe)]
    warned += [f"accepted known issue {issue.id}: {issue.what}" for issue in issues if issue.id in accepted]
    return [*warned, *engine_arguments.notes(subject.recipe, accepted)]


def version_matches(value: Mapping[str, str], version: str) -> bool:
    """Return True if a version of the engine meets the condition `engine`."""
    if "or_builds" in value and re.search(value["or_builds"], version):
        return True
    since, below = numbers(value.get("since", "0.0.0")), numbers(value.get("below", "999.0.0"))
    return since <= numbers(version) < below


def _drafter_matches(value: str, subject: Subject) -> bool:
    drafter = subject.recipe.get("drafter")
    return drafter is not None and (value == "any" or drafter["repository"].endswith("-assistant"))


def _settings_match(block: str) -> Callable[[Any, Subject], bool]:
    """Return the condition for a block of settings: name -> {set: true or false}, {is: value} or {has: a text}."""

    def match(value: Mapping[str, Document], subject: Subject) -> bool:
        settings = subject.recipe.get(block, {})
        return all(_setting_matches(rule, name, settings) for name, rule in value.items())

    return match


def _setting_matches(rule: Document, name: str, settings: Mapping[str, Any]) -> bool:
    if "set" in rule:
        return bool((name in settings) == rule["set"])
    if "has" in rule:
        return rule["has"] in str(settings.get(name))
    return bool(settings.get(name) == rule["is"])


def settings_in(recipe: Document, patterns: Mapping[str, str]) -> list[str]:
    """Return those of some settings that a recipe has with a value in which their pattern is found. A setting is
    `args.FLAG`, `args.FLAG.KEY` for a key at any depth of the flag's map, or `env.NAME`."""
    found = []
    for setting, pattern in patterns.items():
        block, name, *key = setting.split(".")
        values = (value for own, value in recipe.get(block, {}).items() for value in _values(own, value, name, key))
        if any(value not in (None, "") and re.search(pattern, str(value)) for value in values):
            found.append(setting)
    return found


def _values(own: str, value: Any, name: str, key: Sequence[str]) -> Iterator[Any]:
    """Yield the values of a setting in one entry of a block: FLAG: MAP, or FLAG.KEY: VALUE."""
    flag, _, path = own.partition(".")
    if flag != name or (path and not key):
        return
    if not key or (path and key[0] in path.replace("-", "_").removesuffix("+").split(".")):
        yield value
    else:
        yield from _at(value, key[0])


def _at(value: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key at any depth of a map, or of the JSON of one."""
    value = flag_types.parsed(value)
    if isinstance(value, dict):
        for name, inside in value.items():
            if name == key:
                yield inside
            else:
                yield from _at(inside, key)
    elif isinstance(value, list):
        for inside in value:
            yield from _at(inside, key)


def has_kv_connector(recipe: Document) -> bool:
    """Return True if the engine hands its cache to a connector. vLLM makes one of kv-offloading-size, too."""
    return any(name.partition(".")[0] in KV_CONNECTOR_FLAGS for name in recipe["args"])


def _pip_matches(value: str, subject: Subject) -> bool:
    pins = subject.recipe["image"].get("derive", {}).get("pip", [])
    return any(re.search(value, pin) for pin in pins)


def _utilization_matches(value: float, subject: Subject) -> bool:
    """Return True if the engine reserves this share of the memory or more. With kv_cache_bytes it ignores the share."""
    memory = subject.recipe.get("memory", {})
    return "kv_cache_bytes" not in memory and memory.get("utilization", 0) >= value


CONDITIONS: Mapping[str, Callable[[Any, Subject], bool]] = {
    "engine": lambda value, subject: version_matches(value, subject.recipe["engine"]["version"]),
    "model": lambda value, subject: bool(re.search(value, subject.recipe["model"]["repository"])),
    "image": lambda value, subject: bool(re.search(value, locked_name(subject.recipe))),
    "drafter": _drafter_matches,
    "nodes": lambda value, subject: bool(subject.recipe["topology"]["nodes"] == value),
    "executor": lambda value, subject: bool(subject.recipe["topology"]["executor"] == value),
    "args": _settings_match("args"),
    "env": _settings_match("env"),
    "settings": lambda value, subject: bool(settings_in(subject.recipe, value)),
    "bind": lambda value, subject: subject.bind == value,
    "closed": lambda value, subject: subject.closed == value,
    "secret": lambda value, subject: value in subject.secrets,
    "pip": _pip_matches,
    "mount": lambda value, subject: any(re.search(value, m["target"]) for m in subject.recipe.get("mounts", [])),
    "device": lambda value, subject: any(
        re.search(value, device) for device in subject.recipe.get("runtime", {}).get("devices", [])
    ),
    "utilization_from": _utilization_matches,
    "kv_connector": lambda value, subject: has_kv_connector(subject.recipe) == value,
    "deadline_below": lambda value, subject: bool(subject.recipe["gates"]["ready"]["deadline_s"] < value),
}
