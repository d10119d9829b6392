"""Check every recipe with the parser, the checks and the environment variables of the engine version that it pins.

`make engine`. Tests that do not need the engine are in tests/unit.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import environments
import launches
import pytest
import yaml

from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import loader

HERE = Path(__file__).parent
CHECK = HERE / "check_argv.py"
SPARK = HERE / "spark"
BROKEN: list[dict[str, Any]] = yaml.safe_load((HERE / "broken.yml").read_text(encoding="utf-8"))
RECIPES = sorted(loader.names([paths.RECIPES]))


def document_of(name: str) -> dict[str, Any]:
    return dict(loader.load(name).document)


def changed(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` merged in recursively. A null removes a key."""
    made = dict(base)
    for key, value in change.items():
        if value is None:
            made.pop(key)
        elif isinstance(value, dict):
            made[key] = changed(made.get(key, {}), value)
        else:
            made[key] = value
    return made


def engine_of(case: Mapping[str, Any]) -> str:
    pinned = document_of(case["recipe"])["engine"]["version"]
    return case.get("engine") or environments.release_of(pinned)


@cache
def wanted() -> dict[str, list[dict[str, Any]]]:
    """Return the launches of all tests by engine, because each engine is started once."""
    found: dict[str, list[dict[str, Any]]] = {version: [] for version in environments.ENGINES}
    for name in RECIPES:
        try:
            document = document_of(name)
        except RefusedError:
            continue  # the test of this recipe reports why
        if (version := environments.release_of(document["engine"]["version"])) in found:
            found[version] += launches.of_recipe(document)
    for case in BROKEN:
        broken = {**changed(document_of(case["recipe"]), case.get("change", {})), "name": case["id"]}
        found[engine_of(case)] += launches.of_recipe(broken)
    return found


@cache
def answers() -> dict[str, Answer]:
    """Return the answer of each engine. Two run at a time, because the start of an engine uses one processor."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(wanted(), pool.map(ask, wanted()), strict=True))


def ask(version: str) -> Answer:
    """Run check_argv.py once with all launches of one version. The answer to an equal input comes from the cache."""
    lines = "\n".join(json.dumps(launch) for launch in wanted()[version])
    environment = environments.environment(version)
    asked = [environment["PYTHONPATH"], lines, *(file.read_text() for file in (CHECK, *sorted(SPARK.glob("*.py"))))]
    kept = environments.CACHE / f"answer-{version}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]}.jsonl"
    if not kept.exists():
        # -S: only the standard library of this interpreter.
        words = [sys.executable, "-S", str(CHECK)]
        done = subprocess.run(words, input=lines, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return Answer(error=f"vLLM {version}: {done.stderr[-4000:]}")
        for stale in environments.CACHE.glob(f"answer-{version}-*"):
            stale.unlink()
        kept.write_text(done.stdout, encoding="utf-8")
    verdicts = map(json.loads, kept.read_text(encoding="utf-8").splitlines())
    return Answer({verdict["id"]: verdict["faults"] for verdict in verdicts})


@dataclass(frozen=True)
class Answer:
    """Faults by id of a launch. `error` is set if the engine did not start."""

    faults: Mapping[str, list[str]] = field(default_factory=dict)
    error: str = ""


def faults_of(name: str, version: str) -> list[str]:
    """Return the faults of all ranks of a recipe."""
    assert version in environments.ENGINES, (
        f"vLLM {version} is not in tests/engine/engines.yml, which has {', '.join(environments.ENGINES)}"
    )
    answer = answers()[version]
    assert not answer.error, answer.error
    ranks = {launch: said for launch, said in answer.faults.items() if launch.startswith(f"{name} on ")}
    assert ranks, f"{name} is missing in the answer"
    return [f"{launch}: {fault}" for launch, said in ranks.items() for fault in said]


@pytest.mark.parametrize("name", RECIPES)
def test_the_engine_takes_the_recipe(name: str) -> None:
    version = environments.release_of(document_of(name)["engine"]["version"])
    # engines.yml names the other test, and pytest prints it.
    if version in environments.ELSEWHERE:
        pytest.skip(f"vLLM {version}: {environments.ELSEWHERE[version]}")
    assert faults_of(name, version) == []


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["id"])
def test_the_engine_refuses_the_broken_copy(case: Mapping[str, Any]) -> None:
    assert faults_of(case["recipe"], engine_of({"recipe": case["recipe"]})) == [], "the recipe itself does not pass"
    found = faults_of(case["id"], engine_of(case))
    assert any(case["words"] in fault for fault in found), found


def test_every_engine_is_used() -> None:
    pinned = {environments.release_of(document_of(name)["engine"]["version"]) for name in RECIPES}
    unused = environments.ENGINES.keys() - pinned - {engine_of(case) for case in BROKEN}
    assert unused == set(), "no recipe pins this engine, which costs a minute: remove it from engines.yml"
