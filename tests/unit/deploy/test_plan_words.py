"""The words of a plan: conditional for a verb that reads, future for a verb that acts. And the digits of a digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.cases import build, intents, resolved
from fakes.deployed_spark import deployed_facts
from fakes.fake_ansible import load_action
from vllm_spark.core.text import short_digest
from vllm_spark.deploy import plan
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec

WORDS = pytest.mark.parametrize(("acts", "word"), [(False, "would be"), (True, "will be")])


@WORDS
def test_a_unit_that_does_not_run(resolve: Callable[..., Spec], facts: dict[str, Any], acts: bool, word: str) -> None:
    spec = resolve(secrets={"HF_TOKEN": True, "VLLM_API_KEY": True})
    host_facts = deployed_facts(spec, facts)
    host_facts["docker"]["containers"] = {}
    host_facts["units"][spec.deployment.unit]["ActiveState"] = "inactive"
    _, lines = plan.of_host(intents({"spark1": spec}), {"spark1": host_facts}, "spark1", "x", plan.Purpose(acts=acts))
    assert f"{spec.deployment.unit} {word} started, it is not running" in lines[0]


NOT_USED = "VLLM_API_KEY of vllm_secrets is not used: the edge has a key for each person (vllm-spark key add)"
THROUGH = "clients reach it through the edge: https on 0.0.0.0:8000, with a key"
EVERYBODY = "every client that reaches port 8000 may use it: vllm_secrets has no VLLM_API_KEY"


@pytest.mark.parametrize(
    ("edge", "secrets", "rank", "expected"),
    [
        ({}, ["HF_TOKEN", "VLLM_API_KEY"], 0, [THROUGH, NOT_USED]),
        ({}, ["HF_TOKEN"], 0, [THROUGH]),
        ({}, ["HF_TOKEN"], 1, []),
        ({"open": True}, ["HF_TOKEN"], 0, [EVERYBODY]),
        ({"open": True}, ["HF_TOKEN", "VLLM_API_KEY"], 0, []),
        ({"open": True}, ["HF_TOKEN"], 1, []),
    ],
)
def test_a_plan_says_who_may_use_the_api(
    facts: dict[str, Any], edge: dict[str, Any], secrets: list[str], rank: int, expected: list[str]
) -> None:
    case = {"edge": edge, "secrets": dict.fromkeys(secrets, True)}
    spec = replace(resolved(case, "spark1")["spark1"], rank=rank)
    lines = plan.summary(spec, build(spec, deployed_facts(spec, facts)))
    assert [line for line in lines if line in (THROUGH, NOT_USED, EVERYBODY)] == expected


@WORDS
def test_a_unit_that_stops(facts: dict[str, Any], acts: bool, word: str) -> None:
    facts = {**facts, "units": {"vllm@a.service": {}}, "running_units": ["vllm@a.service"], "enabled_units": []}
    expected = [f"vllm@a.service {word} stopped: no deployment is active here"]
    idle, purpose = {"spark1": HostIntent("spark1")}, plan.Purpose(acts=acts)
    assert plan.of_host(idle, {"spark1": facts}, "spark1", "test", purpose)[1] == expected


@pytest.mark.parametrize(
    ("check_mode", "variables", "acts"),
    [
        (False, {"spark_lock_verb": "deploy"}, True),
        (True, {"spark_lock_verb": "deploy"}, False),  # deploy --check
        (False, {}, False),  # plan, precheck, verify
        (True, {}, False),
    ],
)
def test_a_verb_acts_under_the_lock_outside_of_check_mode(
    check_mode: bool, variables: dict[str, Any], acts: bool
) -> None:
    task = SimpleNamespace(action="test", args={}, async_val=0, check_mode=check_mode)
    action = load_action("vllm_plan")(task, None, None, None, None, None)
    action.task_vars = variables
    assert action.acts is acts


def test_short_digest() -> None:
    digest = "0123456789ab" + "f" * 52
    for image in (f"sha256:{digest}", f"registry:5000/vllm:v1@sha256:{digest}"):
        assert short_digest(image) == "0123456789ab"
