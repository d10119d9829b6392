"""Known issues: each is met by what has it, and not by its neighbour; the catalogue is free of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from conftest import DATA
from test_cases import merge

from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.inventory import spec
from vllm_spark.recipe import known_issues, loader
from vllm_spark.recipe.known_issues import Subject

CASES = yaml.safe_load((DATA / "compatibility.yml").read_text())

PLAIN = {
    "name": "plain",
    "image": {"repository": "vllm/vllm-openai", "tag": "v0.30.0"},
    "engine": {"version": "0.30.0"},
    "model": {"repository": "google/gemma-4-31B-it"},
    "args": {},
    "topology": {"nodes": 1, "executor": "uni"},
    "gates": {"ready": {"deadline_s": 900}},
}


def subject(changes: dict[str, Any]) -> Subject:
    given = copy.deepcopy(changes)
    secrets, bind = given.pop("secrets", []), given.pop("bind", "0.0.0.0")  # noqa: S104  a deployment's default
    return Subject(merge(copy.deepcopy(PLAIN), given), secrets, bind)


def test_every_known_issue_has_its_cases() -> None:
    assert [issue.id for issue in known_issues.load()] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_issue_is_met(name: str) -> None:
    for changes in CASES[name]["has"]:
        assert name in {issue.id for issue in known_issues.matching_issues(subject(changes))}, changes


@pytest.mark.parametrize("name", CASES)
def test_its_neighbour_does_not_have_it(name: str) -> None:
    for changes in CASES[name]["has_not"]:
        assert name not in {issue.id for issue in known_issues.matching_issues(subject(changes))}, changes


@pytest.mark.parametrize("name", loader.names([paths.RECIPES]))
def test_no_recipe_of_the_catalogue_is_known_to_fail(name: str) -> None:
    found = known_issues.matching_issues(Subject(loader.load(name).document))
    assert [issue.id for issue in found if issue.level == "refuse"] == []


def test_an_accepted_issue_goes_on_and_is_kept(resolve: Callable[..., spec.Spec], facts: dict[str, Any]) -> None:
    asked = {"overrides": {"env": {"VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}}}
    with pytest.raises(RefusedError) as refused:
        resolve(**asked)
    assert "-e accept_known_issue=env-attention-backend" in str(refused.value)
    went_on = resolve(accept_known_issues=["env-attention-backend"], **asked)
    assert went_on.accepted == ("env-attention-backend",)
    noted = known_issues.notes(Subject(went_on.recipe), went_on.accepted)
    assert [line for line in noted if line.startswith("accepted known issue env-attention-backend")]
    made = plan.build(went_on, facts, "test")
    record = next(file for file in made.files if file.path.endswith("/deployed.json"))
    assert json.loads(record.content)["accepted_known_issues"] == ["env-attention-backend"]


def test_accepting_what_nobody_knows_is_refused(resolve: Callable[..., spec.Spec]) -> None:
    with pytest.raises(RefusedError) as refused:
        resolve(accept_known_issues=["env-atention-backend"])
    assert "accept_known_issue names env-atention-backend" in str(refused.value)
