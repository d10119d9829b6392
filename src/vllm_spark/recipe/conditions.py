"""Conditions about a recipe, by which rows of data apply to it: known issues, and memory of the host. Pure.

recipes/compatibility.schema.json explains each one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.engine_version import numbers
from vllm_spark.core.ports import ALL_INTERFACES
from vllm_spark.core.types import Document
from vllm_spark.recipe import flag_types, roles
from vllm_spark.recipe.lockfile import locked_name

KV_CONNECTOR_FLAGS = ("kv-transfer-config", "kv-offloading-size")

# Condition name (a key of CONDITIONS) -> the value that it must have.
Conditions = Document


@dataclass(frozen=True, slots=True)
class Subject:
    """The input of conditions: a recipe with its overrides, the names of the secrets, the API's address, and whether
    the engine is behind the edge."""

    recipe: Document
    secrets: Collection[str] = ()
    bind: str = ALL_INTERFACES
    closed: bool = False


def conditions_match(conditions: Conditions, subject: Subject) -> bool:
    """Return True if every condition is true."""
    return all(CONDITIONS[name](value, subject) for name, value in conditions.items())


def applies(when: Conditions, unless: Sequence[Conditions], subject: Subject) -> bool:
    """Return True if all conditions of `when` are true and no set of `unless` is."""
    return conditions_match(when, subject) and not any(conditions_match(set_, subject) for set_ in unless)


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
    return [
        setting
        for setting, pattern in patterns.items()
        if any(value not in (None, "") and re.search(pattern, str(value)) for value in values_of(recipe, setting))
    ]


def values_of(recipe: Document, setting: str) -> list[Any]:
    """Return the values of a setting of `settings_in`. A key may occur in several maps of a flag."""
    block, name, *key = setting.split(".", 2)
    return [value for own, value in recipe.get(block, {}).items() for value in _values(own, value, name, key)]


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
    """Return True if the engine reserves this share of the memory or more. With kv_cache_bytes it takes none of it: the
    share must only be free at its start (sizing/memory.py, requirement)."""
    memory = subject.recipe.get("memory", {})
    return "kv_cache_bytes" not in memory and memory.get("utilization", 0) >= value


CONDITIONS: Mapping[str, Callable[[Any, Subject], bool]] = {
    "engine": lambda value, subject: version_matches(value, subject.recipe["engine"]["version"]),
    "model": lambda value, subject: bool(re.search(value, subject.recipe["model"]["repository"])),
    "image": lambda value, subject: bool(re.search(value, locked_name(subject.recipe))),
    "drafter": _drafter_matches,
    "role": lambda value, subject: roles.of(subject.recipe) in value,
    # 2 stands for several: what fails on a pair fails on more ranks.
    "nodes": lambda value, subject: bool(min(subject.recipe["topology"]["nodes"], 2) == value),
    "split": lambda value, subject: (subject.recipe["topology"]["tensor_parallel"] > 1) == value,
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
