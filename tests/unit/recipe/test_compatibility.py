"""Known issues: each matches the recipes that have it and not similar ones, and the catalogue has none of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.cases import build, merge
from project_files import DATA
from vllm_spark.core import paths, ports
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import spec
from vllm_spark.recipe import known_issues, loader
from vllm_spark.recipe.conditions import Subject

CASES = yaml.load((DATA / "compatibility.yml").read_text(), yaml.CSafeLoader)

PLAIN = {
    "name": "plain",
    "image": {"repository": "vllm/vllm-openai", "tag": "v0.30.0"},
    "engine": {"version": "0.30.0"},
    "model": {"repository": "google/gemma-4-31B-it"},
    "args": {},
    "topology": {"nodes": 1, "tensor_parallel": 1, "executor": "uni"},
    "gates": {"ready": {"deadline_s": 900}},
}


def subject(changes: dict[str, Any]) -> Subject:
    """Return PLAIN with changes. `secrets`, `bind` and `closed` are of the deployment."""
    changes = copy.deepcopy(changes)
    secrets, bind = changes.pop("secrets", []), changes.pop("bind", ports.ALL_INTERFACES)
    closed = changes.pop("closed", False)
    return Subject(merge(copy.deepcopy(PLAIN), changes), secrets, bind, closed)


def test_every_known_issue_has_cases() -> None:
    assert [issue.id for issue in known_issues.load()] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_issue_matches_the_recipes_that_have_it(name: str) -> None:
    for changes in CASES[name]["has"]:
        assert name in {issue.id for issue in known_issues.matching_issues(subject(changes))}, changes


@pytest.mark.parametrize("name", CASES)
def test_an_issue_does_not_match_similar_recipes(name: str) -> None:
    for changes in CASES[name]["has_not"]:
        assert name not in {issue.id for issue in known_issues.matching_issues(subject(changes))}, changes


@pytest.mark.parametrize("name", loader.names([paths.RECIPES]))
def test_no_recipe_of_the_catalogue_has_a_refusing_issue(name: str) -> None:
    document = loader.load(name).document
    for one in (Subject(document), known_issues.of_closed(document)):
        assert [issue.id for issue in known_issues.matching_issues(one) if issue.level == "refuse"] == []


def test_a_vocabulary_that_is_fetched_is_refused_behind_the_edge_only(tmp_path: Path) -> None:
    """The engine of one Spark has no network there (vllm#22525)."""
    document = yaml.load((paths.RECIPES / "gpt-oss-120b.yml").read_text(), yaml.CSafeLoader)
    del document["env"], document["image"]["derive"]
    (tmp_path / "gpt-oss-120b.yml").write_text(yaml.safe_dump(document))

    def resolved(*, opened: bool) -> spec.Spec | None:
        placed = {"name": "demo", "recipe": "gpt-oss-120b", "hosts": ["spark1"]}
        return spec.resolve(
            spec.Inventory([placed], ("spark1",), ("spark1",), (tmp_path,), edge={"open": opened}), "spark1"
        )

    assert resolved(opened=True)
    with pytest.raises(RefusedError) as refused:
        resolved(opened=False)
    assert [refusal.id for refusal in refused.value.refusals] == ["harmony-vocabulary"]


def test_an_accepted_issue_deploys_and_is_recorded(resolve: Callable[..., spec.Spec], facts: dict[str, Any]) -> None:
    fields = {"overrides": {"env": {"VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}}}
    with pytest.raises(RefusedError) as refused:
        resolve(**fields)
    assert "-e accept_known_issue=env-attention-backend" in str(refused.value)
    accepted = resolve(accept_known_issues=["env-attention-backend"], **fields)
    assert accepted.accepted == ("env-attention-backend",)
    notes = known_issues.notes(Subject(accepted.recipe), accepted.accepted)
    assert [line for line in notes if line.startswith("accepted known issue env-attention-backend")]
    record = next(file for file in build(accepted, facts).files if file.path.endswith("/deployed.json"))
    assert json.loads(record.content)["accepted_known_issues"] == ["env-attention-backend"]


def test_accepting_an_unknown_issue_is_refused(resolve: Callable[..., spec.Spec]) -> None:
    with pytest.raises(RefusedError) as refused:
        resolve(accept_known_issues=["env-atention-backend"])
    assert "accept_known_issue names env-atention-backend" in str(refused.value)
