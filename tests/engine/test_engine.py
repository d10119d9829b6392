"""Every recipe against the engine that it pins: its real parser, its checks, and the variables that it reads.

`make engine` runs them. Tests without the engine are in tests/unit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import engine_process
import environments
import launches
import pytest
import yaml

from vllm_spark.core import engine_version, paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import loader

HERE = Path(__file__).parent
BROKEN: list[dict[str, Any]] = yaml.load((HERE / "broken.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
RECIPES = sorted(loader.names([paths.RECIPES]))


def pins() -> dict[str, str]:
    """Return recipe -> the engine that it pins, without recipes that cannot be read, which another test reports."""
    result = {}
    for name in RECIPES:
        with suppress(RefusedError):
            result[name] = environments.release_of(document_of(name)["engine"]["version"])
    return result


def document_of(name: str) -> dict[str, Any]:
    return dict(loader.load(name).document)


NEWEST = max(pins().values(), key=engine_version.release)
# Versions that an owner may upgrade to, and the recipes that stand before it.
AHEAD = [each for each in environments.ENGINES if engine_version.release(each) > engine_version.release(NEWEST)]
OF_THE_NEWEST = [name for name, version in pins().items() if version == NEWEST]


def changed(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` merged into it, level by level. A null deletes a key."""
    created = dict(base)
    for key, value in change.items():
        if value is None:
            created.pop(key)
        elif isinstance(value, dict):
            created[key] = changed(created.get(key, {}), value)
        else:
            created[key] = value
    return created


def engine_of(case: Mapping[str, Any]) -> str:
    pinned = document_of(case["recipe"])["engine"]["version"]
    return case.get("engine") or environments.release_of(pinned)


@cache
def wanted() -> dict[str, list[dict[str, Any]]]:
    """Return engine -> every launch of these tests. Each engine is started once."""
    result: dict[str, list[dict[str, Any]]] = {version: [] for version in environments.ENGINES}
    for name, version in pins().items():
        for checking in (version, *(AHEAD if name in OF_THE_NEWEST else ())):
            if checking in result:
                result[checking] += launches.of_recipe(document_of(name))
    for case in BROKEN:
        broken = {**changed(document_of(case["recipe"]), case.get("change", {})), "name": case["id"]}
        result[engine_of(case)] += launches.of_recipe(broken)
    return result


@cache
def answers() -> dict[str, Answer]:
    """Return engine -> its answer, or the error of its start. Two run at a time: a start takes one processor."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(wanted(), pool.map(ask, wanted()), strict=True))


def ask(version: str) -> Answer:
    """Run check_argv.py once with all launches of one version."""
    lines = "\n".join(json.dumps(launch) for launch in wanted()[version])
    try:
        verdicts = map(json.loads, engine_process.output(version, "check_argv.py", lines=lines).splitlines())
    except engine_process.EngineError as error:
        return Answer(error=str(error))
    return Answer({verdict["id"]: verdict["faults"] for verdict in verdicts})


@dataclass(frozen=True)
class Answer:
    """Faults that the engine reports, by id of the launch."""

    faults: Mapping[str, list[str]] = field(default_factory=dict)
    error: str = ""


def faults_of(name: str, version: str) -> list[str]:
    """Return the faults that an engine reports for any rank of a recipe."""
    assert version in environments.ENGINES, (
        f"vLLM {version} is not in tests/engine/engines.yml, which has {', '.join(environments.ENGINES)}"
    )
    answer = answers()[version]
    assert not answer.error, answer.error
    ranks = {launch: faults for launch, faults in answer.faults.items() if launch.startswith(f"{name} on ")}
    assert ranks, f"{name} was not checked"
    return [f"{launch}: {fault}" for launch, faults in ranks.items() for fault in faults]


@pytest.mark.parametrize("name", RECIPES)
def test_the_engine_takes_the_recipe(name: str) -> None:
    assert faults_of(name, environments.release_of(document_of(name)["engine"]["version"])) == []


@pytest.mark.parametrize("version", AHEAD)
@pytest.mark.parametrize("name", OF_THE_NEWEST)
def test_a_newer_engine_takes_the_recipe(name: str, version: str) -> None:
    assert faults_of(name, version) == []


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["id"])
def test_the_engine_refuses_the_broken_copy(case: Mapping[str, Any]) -> None:
    assert faults_of(case["recipe"], engine_of({"recipe": case["recipe"]})) == [], "the recipe itself does not pass"
    result = faults_of(case["id"], engine_of(case))
    assert any(case["words"] in fault for fault in result), result


def test_every_engine_is_used() -> None:
    pinned = {environments.release_of(document_of(name)["engine"]["version"]) for name in RECIPES}
    unused = environments.ENGINES.keys() - pinned - {engine_of(case) for case in BROKEN} - {*AHEAD}
    assert unused == set(), "an older engine that nobody pins costs half a minute: take it out of engines.yml"
