"""Overrides of a deployment: a null removes a key, a gate or the drafter, and the rest passes the rules of a recipe."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from fakes.cases import resolved
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch
from vllm_spark.inventory import deployment
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import loader
from vllm_spark.verify import runner

SAMPLE = paths.ROOT / "inventories" / "sample" / "group_vars" / "all" / "vllm.yml"
RECIPE = "gemma-4-26b-a4b-nvfp4-mtp"
GATES = loader.load(RECIPE).document["gates"]
OWN = {"id": "own", "pattern": "engine is up", "why": "because it is a test"}
# The launch of field report 004 without parsers.
NO_PARSERS = {
    "args": {"enable-auto-tool-choice": None, "tool-call-parser": None, "reasoning-parser": None},
    "gates": {"tools": None, "reasoning": None},
}


def spec_of(overrides: dict[str, Any], recipe: str = RECIPE) -> Spec:
    return resolved(
        {"deployments": [{"name": "demo", "recipe": recipe, "hosts": ["spark1"], "overrides": overrides}]}, "spark1"
    )["spark1"]


def test_a_drafter_of_null_is_served_without() -> None:
    with_it, without = spec_of({}), spec_of({"drafter": None})
    assert "--speculative-config" in launch.argv(with_it)
    assert "--speculative-config" not in launch.argv(without)
    assert "assistant" not in " ".join(launch.argv(without))
    # What was measured with the drafter is no figure of this launch.
    assert "expected" in with_it.recipe
    assert {"drafter", "expected"} & without.recipe.keys() == set()


def test_a_drafter_of_null_changes_nothing_without_a_drafter() -> None:
    name = "gemma-4-26b-a4b-fp8"
    assert spec_of({"drafter": None}, name).recipe["expected"] == spec_of({}, name).recipe["expected"]


def ids(gates: dict[str, Any]) -> list[str]:
    return [gate["id"] for gate in gates.get("log", [])]


def test_a_launch_without_parsers_is_judged_without_their_gates() -> None:
    spec = spec_of(NO_PARSERS)
    assert "parser" not in " ".join(launch.argv(spec))
    judged = runner.gate_request(spec, "f")
    assert {"tools", "reasoning", *judged.gates} == set(runner.gate_request(spec_of({}), "f").gates)
    assert {"tools", "reasoning"} & judged.gates.keys() == set()


# overrides.gates -> the changed gates of the recipe, and the ids of its log gates
CHANGES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"ready": {"deadline_s": 1200}}, {"ready": {"deadline_s": 1200}}, ["attention", "no-unknown-variable"]),
    ({"tools": {"cases": ["html"]}}, {"tools": {"cases": ["html"]}}, ["attention", "no-unknown-variable"]),
    ({"use": {"attention": None}}, {}, ["no-unknown-variable"]),
    ({"use": {"attention": "FLASHINFER"}}, {}, ["no-unknown-variable", "attention"]),
    ({"use": {"kv-tokens": 1000}}, {}, ["attention", "no-unknown-variable", "kv-tokens"]),
    ({"log": [OWN]}, {}, ["own"]),
    ({"log": [OWN], "use": {"attention": "FLASHINFER"}}, {}, ["own", "attention"]),
    ({"log": None}, {}, []),
    ({"log": None, "use": {"attention": None}}, {}, []),
    ({"answer": None}, {"answer": None}, ["attention", "no-unknown-variable"]),
]


@pytest.mark.parametrize(("gates", "changed", "log"), CHANGES, ids=[json.dumps(change[0]) for change in CHANGES])
def test_gates_are_replaced_and_removed(gates: dict[str, Any], changed: dict[str, Any], log: list[str]) -> None:
    merged = dict(spec_of({"gates": gates}).recipe["gates"])
    assert ids(merged) == log
    merged.pop("log", None)
    wanted = {**{name: gate for name, gate in GATES.items() if name != "log"}, **changed}
    assert merged == {name: gate for name, gate in wanted.items() if gate is not None}


# overrides -> a part of the refusal
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gates": None}, "overrides.gates: null — expected: a map"),
    (
        {"gates": {"tolls": None}},
        "overrides.gates: unknown key tolls — expected: only answer, anthropic, embed",
    ),
    ({"gates": {"ready": None}}, "overrides.gates.ready: null — expected: a map"),
    ({"gates": {"ready": {}}}, "overrides.gates.ready: missing key deadline_s"),
    ({"gates": {"tools": {"cases": ["one"]}}}, 'overrides.gates.tools.cases[0]: "one" — expected: one of single'),
    ({"gates": {"use": {"atention": None}}}, "overrides.gates.use.atention: unknown — expected: attention"),
    ({"gates": {"use": {"attention": False}}}, "overrides.gates.use.attention: false — expected: true, a text"),
    ({"gates": {"use": {"compile-cache-off": "on"}}}, "overrides.gates.use.compile-cache-off: on — expected: true"),
    ({"gates": {"log": [{"id": "x"}]}}, "overrides.gates.log[0]: missing keys pattern, why"),
    ({"gates": {"log": [{}]}}, "overrides.gates.log[0]: missing key id"),
    ({"gates": {"log": [OWN, OWN]}}, "overrides.gates.log[1].id: own twice"),
    ({"gates": {"log": [{**OWN, "pattern": "(open"}]}}, "overrides.gates.log[0].pattern: (open — expected: a regular"),
    ({"drafter": "none"}, 'overrides.drafter: "none" — expected: a map or null'),
    ({"drafter": {"speculative_tokens": None}}, "overrides.drafter.speculative_tokens: null — expected: a whole"),
    ({"topology": {"executor": None}}, "overrides.topology.executor: null — expected: one of mp, ray"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=str)
def test_what_is_left_passes_the_rules_of_a_recipe(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        spec_of(overrides)
    assert f"deployment demo: {message}" in str(refused.value)
    assert {refusal.id for refusal in refused.value.refusals} == {"bad-deployments"}


def test_every_gate_of_a_recipe_can_be_overridden() -> None:
    recipe = json.loads(loader.SCHEMA.read_text())["properties"]["gates"]["properties"]
    entry = json.loads(deployment.SCHEMA.read_text())["items"]["properties"]["overrides"]["properties"]
    assert entry["gates"]["properties"].keys() == recipe.keys()


def test_the_overrides_of_the_sample_fit_their_recipes() -> None:
    entries = deployment.parse(yaml.load(SAMPLE.read_text(), yaml.CSafeLoader)["vllm_deployments"])
    changed = [entry for entry in entries if entry.overrides]
    assert changed
    for entry in changed:
        merged = loader.merged(loader.load(entry.recipe), entry.overrides)
        assert list(loader.merged_faults(merged, entry.overrides)) == []
    known = json.loads(deployment.SCHEMA.read_text())["items"]["properties"]["overrides"]["properties"]
    assert {block for entry in changed for block in entry.overrides} == known.keys()
