"""The cases of tests/cases: their resolved specs and the facts of their hosts."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes.recorded_hosts import HOSTS, load, record
from project_files import DATA, RECIPE_FOLDERS
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import launch, plan, ranks
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory import spec
from vllm_spark.inventory.edge_backends import OtherEdge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.sizing import reference_spark

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


def resolved(case: Mapping[str, Any], host: str, lock: Path | None = None) -> dict[str, spec.Spec]:
    """Return host -> spec of a case's deployment, which is open unless the case says otherwise. Each spec is converted
    to JSON and back, as Ansible does."""
    edge, sparks = case.get("edge", {"open": True}), tuple(case.get("sparks", ("spark1", "spark2")))
    inventory = spec.Inventory(
        deployments=case.get("deployments", [DEMO]),
        sparks=sparks,
        limit=tuple(case.get("limit", ["spark1"])),
        recipe_folders=RECIPE_FOLDERS,
        lock_file=lock,
        secrets=case.get("secrets", {"HF_TOKEN": True}),
        edge=edge,
        edges=dict.fromkeys(sparks, OtherEdge(edge, "")),
        own=case.get("own", {}),
        own_names=tuple(case.get("own_names", ())),
    )
    first = spec.resolve(inventory, host)
    assert first is not None
    specs = {name: spec.resolve(inventory, name) for name in first.deployment.hosts}
    return {name: spec.Spec.from_json(json.loads(json.dumps(one.to_json()))) for name, one in specs.items() if one}


def intents(specs: Mapping[str, spec.Spec]) -> dict[str, HostIntent]:
    """Return the intents of hosts with these ranks."""
    return {host: HostIntent.of_rank(one) for host, one in specs.items()}


def asked(rank: spec.Spec) -> dict[str, Any]:
    """Return the questions about a host with this rank."""
    questions = plan.questions(HostIntent.of_rank(rank))
    assert questions is not None
    return questions


def build(rank: spec.Spec, facts: Any) -> plan.Plan:
    """Return the plan of a host that nothing refuses."""
    return plan.build(HostContext(rank.host, rank, facts), "test")


def hosts_of(
    case: Mapping[str, Any], specs: Mapping[str, spec.Spec], facts: dict[str, Any], tmp_path: Path
) -> dict[str, Any]:
    """Return host -> facts: a healthy host's, then the recorded fabric, then the case's `facts` and `host_facts`."""
    recording = FABRICS / case.get("fabric", "one-cable")
    hosts = {host: {**copy.deepcopy(facts), "hostname": host} for host in specs}
    for host, host_facts in hosts.items() if len(specs) > 1 else ():
        recorded = len(specs) == len(HOSTS)
        host_facts["fabric"] = (
            record(tmp_path / host, load(recording, host)) if recorded else reference_spark.fabric(host)
        )
    try:
        fingerprint = launch.fingerprint(ranks.join(specs, hosts)[next(iter(specs))])
    except RefusedError:
        fingerprint = ""  # the launch is refused, so no container has its fingerprint
    for host, host_facts in hosts.items():
        merge(host_facts, filled(case.get("facts", {}), fingerprint))
        merge(host_facts, filled(case.get("host_facts", {}).get(host, {}), fingerprint))
    return hosts


def pair_of(facts: dict[str, Any], tmp_path: Path) -> tuple[dict[str, spec.Spec], dict[str, Any]]:
    """Return the specs and the facts of a healthy pair, by host."""
    hosts = ["spark1", "spark2"]
    case = {"deployments": [{"name": "pair", "recipe": "two-sparks", "hosts": hosts}], "limit": hosts, "secrets": {}}
    specs = resolved(case, "spark1")
    return specs, hosts_of(case, specs, facts, tmp_path)


def filled(value: Any, fingerprint: str) -> Any:
    """Return `value` with `{fingerprint}` replaced, so that no case contains a hash."""
    return json.loads(json.dumps(value).replace("{fingerprint}", fingerprint))
