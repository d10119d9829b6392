"""One driver over tests/cases/*.json: an inventory and facts in; argv, plan or refusals out.

A case holds `deployments` (default: one, `demo`, of recipe `everything` on spark1), `host`, `limit`, `secrets`,
`facts` (merged over tests/data/facts/spark.json) and what it expects: `argv`, `plan` (fields of the plan), `summary` or
`refusals` (id -> a part of the message).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import RECIPE_FOLDERS

from vllm_spark import launch, plan, spec
from vllm_spark.refusal import Refusal, RefusedError

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.json"))
DEMO = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}


def merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, folder by folder; a null takes a key away."""
    for key, value in changes.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = value
    return base


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_case(file: Path, facts: dict[str, Any]) -> None:
    case = json.loads(file.read_text())
    expected = case["expect"]
    assert expected, "a case that expects nothing proves nothing"
    inventory = spec.Inventory(
        deployments=case.get("deployments", [DEMO]),
        sparks=("spark1", "spark2"),
        limit=tuple(case.get("limit", ["spark1"])),
        recipe_folders=RECIPE_FOLDERS,
        secrets=case.get("secrets", {"HF_TOKEN": True}),
    )
    found, box, refused = judged(inventory, case, facts)
    if "refusals" in expected:
        said = {refusal.id: str(refusal) for refusal in refused}
        assert said.keys() == expected["refusals"].keys(), said
        for name, part in expected["refusals"].items():
            assert part in said[name]
        return
    assert not refused, refused
    assert found is not None
    made = plan.build(found, box, toolkit="test").to_json()
    if "argv" in expected:
        assert launch.argv(found) == filled(expected["argv"], launch.fingerprint(found))
    if "summary" in expected:
        assert plan.summary(found, plan.build(found, box, toolkit="test")) == expected["summary"]
    for name, value in expected.get("plan", {}).items():
        assert made[name] == value, name


def judged(
    inventory: spec.Inventory, case: Mapping[str, Any], facts: dict[str, Any]
) -> tuple[spec.Spec | None, dict[str, Any], list[Refusal]]:
    """The spec, the box's facts, and what either stage refused."""
    try:
        found = spec.resolve(inventory, case.get("host", "spark1"))
    except RefusedError as error:
        return None, {}, list(error.refusals)
    assert found is not None
    # What Ansible carries from stage to stage is JSON; a case goes the same way.
    found = spec.Spec.from_json(json.loads(json.dumps(found.to_json())))
    box = merge(facts, filled(case.get("facts", {}), launch.fingerprint(found)))
    return found, box, list(plan.refusals(found, box))


def filled(value: Any, fingerprint: str) -> Any:
    """`value` with `{fingerprint}` replaced: a hash in a case would hide what the case is about."""
    return json.loads(json.dumps(value).replace("{fingerprint}", fingerprint))
