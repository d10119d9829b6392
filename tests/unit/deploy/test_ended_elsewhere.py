"""A deploy on one Spark that stops a rank of a pair says that the pair ends on the other Spark, too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.cases import build
from project_files import RECIPE_FOLDERS
from vllm_spark.deploy import plan, unit_state
from vllm_spark.inventory import spec

SOLO = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}
PAIR = {"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"]}
OTHER_SOLO = {"name": "old", "recipe": "everything", "hosts": ["spark1"], "active": False}


def resolved(*deployments: dict[str, Any], limit: tuple[str, ...] = ("spark1",)) -> spec.Spec:
    inventory = spec.Inventory(
        deployments=list(deployments),
        sparks=("spark1", "spark2"),
        limit=limit,
        recipe_folders=RECIPE_FOLDERS,
        secrets={"HF_TOKEN": True},
    )
    result = spec.resolve(inventory, "spark1")
    assert result is not None
    return spec.Spec.from_json(json.loads(json.dumps(result.to_json())))


@pytest.mark.parametrize(("stops", "lines"), [(["vllm@pair.service"], 1), (["vllm@old.service"], 0), ([], 0)])
def test_the_other_spark_is_named(stops: list[str], lines: int) -> None:
    solo = resolved(SOLO, {**PAIR, "active": False}, OTHER_SOLO)
    assert solo.elsewhere == {"pair": ["spark2"]}
    found = unit_state.ended_elsewhere(solo, stops)
    assert len(found) == lines
    assert all("pair would end on spark2 as well" in line and "stop.yml -l spark2" in line for line in found)


def test_a_pair_that_takes_the_place_of_another_pair_ends_it_on_both() -> None:
    other = {**PAIR, "name": "other-pair", "active": False}
    assert resolved(PAIR, other, limit=("spark1", "spark2")).elsewhere == {}


def test_a_run_that_has_the_other_spark_ends_the_pair_there_itself() -> None:
    assert resolved(SOLO, {**PAIR, "active": False}, limit=("spark1", "spark2")).elsewhere == {}


def test_the_plan_has_the_line(facts: dict[str, Any]) -> None:
    facts["units"] |= {"vllm@pair.service": {"ActiveState": "active"}}
    facts["running_units"] = ["vllm@pair.service"]
    solo = resolved(SOLO, {**PAIR, "active": False})
    built = build(solo, facts)
    assert built.stop_units == ["vllm@pair.service"]
    assert any("pair would end on spark2 as well" in line for line in plan.summary(solo, built))
