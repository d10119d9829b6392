"""Cases in tests/cases/*.json: an inventory and facts, and the expected argv, plan or refusals.

A case has `deployments` (default: one, `demo`, of recipe `everything` on spark1), `host`, `limit`, `secrets`, `lock`
(images of a lock file), `lock_models` (its models), `fabric` (for a pair: a folder of tests/data/fabric), `facts`
(merged over tests/data/facts/spark.json), `host_facts` (for one host), and `expect`: `argv`, `plan` (fields of the
plan), `files` (paths), `summary` or `refusals` (id -> a part of the message).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA, RECIPE_FOLDERS
from recorded_hosts import load, record

from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch, plan, ranks
from vllm_spark.inventory import spec

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.json"))
FABRICS = DATA / "fabric"
DEMO = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}


def merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `base`, level by level, and return it. None deletes a key."""
    for key, value in changes.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = value
    return base


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_case(file: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    case = json.loads(file.read_text())
    expected = case["expect"]
    assert expected, "the case expects nothing"
    host = case.get("host", "spark1")
    try:
        lock = tmp_path / "lock.yml"
        lock.write_text(json.dumps({"images": case.get("lock", {}), "models": case.get("lock_models", {})}))
        specs = resolved(case, host, lock)
        hosts = boxes_of(case, specs, facts, tmp_path)
        planned, summary = plan.of_host(specs, hosts, host, "test")
    except RefusedError as error:
        messages = {refusal.id: str(refusal) for refusal in error.refusals}
        assert messages.keys() == expected.get("refusals", {}).keys(), messages
        for name, part in expected["refusals"].items():
            assert part in messages[name]
        return
    assert "refusals" not in expected, "nothing was refused"
    ranked = ranks.join(specs, hosts)[host]
    if "argv" in expected:
        assert launch.argv(ranked) == filled(expected["argv"], launch.fingerprint(ranked))
    if "summary" in expected:
        assert summary == expected["summary"]
    if "files" in expected:
        assert [file_.path for file_ in planned.files] == expected["files"]
    for name, value in expected.get("plan", {}).items():
        assert planned.to_json()[name] == value, name


def resolved(case: Mapping[str, Any], host: str, lock: Path | None = None) -> dict[str, spec.Spec]:
    """Return host -> spec of a case's deployment. Each spec is converted to JSON and back, as Ansible does."""
    inventory = spec.Inventory(
        deployments=case.get("deployments", [DEMO]),
        sparks=("spark1", "spark2"),
        limit=tuple(case.get("limit", ["spark1"])),
        recipe_folders=RECIPE_FOLDERS,
        lock_file=lock,
        secrets=case.get("secrets", {"HF_TOKEN": True}),
    )
    first = spec.resolve(inventory, host)
    assert first is not None
    specs = {name: spec.resolve(inventory, name) for name in first.deployment.hosts}
    return {name: spec.Spec.from_json(json.loads(json.dumps(one.to_json()))) for name, one in specs.items() if one}


def boxes_of(
    case: Mapping[str, Any], specs: Mapping[str, spec.Spec], facts: dict[str, Any], tmp_path: Path
) -> dict[str, Any]:
    """Return host -> facts: a healthy host's, then the recorded fabric, then the case's `facts` and `host_facts`."""
    recording = FABRICS / case.get("fabric", "one-cable")
    hosts = {host: {**copy.deepcopy(facts), "hostname": host} for host in specs}
    for host, host_facts in hosts.items() if len(specs) > 1 else ():
        host_facts["fabric"] = record(tmp_path / host, load(recording, host))
    try:
        fingerprint = launch.fingerprint(ranks.join(specs, hosts)[next(iter(specs))])
    except RefusedError:
        fingerprint = ""  # the launch is refused, so no container has its fingerprint
    for host, host_facts in hosts.items():
        merge(host_facts, filled(case.get("facts", {}), fingerprint))
        merge(host_facts, filled(case.get("host_facts", {}).get(host, {}), fingerprint))
    return hosts


def filled(value: Any, fingerprint: str) -> Any:
    """Return `value` with `{fingerprint}` replaced, so that no case contains a hash."""
    return json.loads(json.dumps(value).replace("{fingerprint}", fingerprint))
