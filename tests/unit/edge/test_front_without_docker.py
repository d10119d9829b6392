"""A front that is no Spark: a small x86 machine without Docker, without a GPU and without a file of the toolkit. Every
verb does its part there, or nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_ports

from fakes import edge_cases
from fakes.cases import intents
from fakes.edge_cases import OTHER, REPLICA, THIRD
from fakes.installed_states import deployment, holdings, launch
from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.inventory import intent
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.lifecycle import prune, remove, rollback_target, status, status_table
from vllm_spark.lifecycle.remove import RemoveRequest
from vllm_spark.lifecycle.status import HostResult

SETTINGS = {"open": False, "site": edge_cases.SITE}
FRONT = edge_cases.intent_of([REPLICA, THIRD], SETTINGS)
NO_DOCKER = {"error": "/var/run/docker.sock: No such file or directory", "images": [], "containers": []}
NOTHING = holdings() | {"docker": NO_DOCKER}
INSTALLED = NOTHING | {
    "accounts": ["vllm-spark-edge"],
    "packages": [],
    "config": "/etc/vllm-spark",
    "unit_files": ["/etc/systemd/system/vllm-edge.service"],
    "units": {"vllm-edge.service": "active"},
}


@pytest.fixture
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "facts" / "front.json").read_text())
    return found


def test_nothing_is_refused_for_want_of_docker_or_a_gpu(facts: Any) -> None:
    planned, lines = plan.of_host({"spark1": FRONT}, {"spark1": facts}, "spark1", "test", plan.Purpose(acts=True))
    assert planned.edge == plan.EdgePlan("present", runs=False, lacks_program=True, judged_alone=True)
    assert (planned.has_rank, list(planned.stop_units)) == (False, [])
    assert lines == [
        "the firewall table will be loaded, which decides who reaches 8000; it only drops",
        "the edge here forwards: https on 0.0.0.0:8000, with a key",
        *lines[2:],
    ]
    assert planned.firewall.package


def test_a_deployment_there_is_refused(facts: Any) -> None:
    """The inventory may name the machine by mistake."""
    wrong = edge_cases.resolved([edge_cases.DEMO], {"open": False})
    with pytest.raises(RefusedError) as refused:
        plan.of_host(intents({"spark1": wrong}), {"spark1": facts}, "spark1", "test")
    assert {"wrong-architecture", "no-docker", "no-gpu"} <= {refusal.id for refusal in refused.value.refusals}


# What else the host has -> the problem of its row in the table of `status`.
ROWS: dict[str, tuple[HostResult, dict[str, Any], str]] = {
    "a front": (HostResult(FRONT), {}, ""),
    "a front with a deployment that a switch could start": (
        HostResult(edge_cases.intent_of([OTHER, REPLICA, THIRD], SETTINGS)),
        {},
        "no Docker engine answers",
    ),
    "a front with an old deployment on its disk": (
        HostResult(FRONT),
        {"status": {"deployments": {"old": {"launch": ""}}, "lock": None}},
        "no Docker engine answers",
    ),
    "an idle Spark": (HostResult(HostIntent("mini")), {}, "no Docker engine answers"),
}


@pytest.mark.parametrize("name", ROWS)
def test_its_row_has_a_problem_only_if_it_needs_docker(name: str, facts: Any) -> None:
    result, more, problem = ROWS[name]
    facts["edge"]["unit"]["ActiveState"] = "active"
    document = status.document({"mini": replace(result, facts={**facts, **more})}, "now", "x")
    (host,) = document["hosts"]
    assert host["problem"].partition(":")[0] == problem
    first = status_table.table(document).splitlines()[3]
    assert ("forwards" in first, "no Docker" in first) == (not problem, bool(problem))


HELD: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": (NOTHING, False),
    "an edge": (INSTALLED, False),
    "a deployment": (NOTHING | {"deployments": {"demo": deployment(current=launch("c"))}}, True),
    "a history": (NOTHING | {"history": {"demo": []}}, True),
    "a pulled image": (NOTHING | {"pulled": ["image@sha256:0"]}, True),
}


@pytest.mark.parametrize("name", HELD)
def test_prune_and_remove_need_docker_where_it_knows_something(name: str) -> None:
    held, refused = HELD[name]
    spark = holdings({"demo": deployment(current=launch("c"))})
    hosts = {"spark1": spark, "mini": held}
    assert [refusal.id for refusal in prune.refusals(hosts)] == ["prune-without-docker"] * refused
    found = remove.refusals(RemoveRequest(limited=True), hosts)
    assert [refusal.id for refusal in found] == ["remove-without-docker"] * refused


def test_remove_takes_the_edge_alone() -> None:
    items, _ = remove.plan(INSTALLED, RemoveRequest(limited=True))
    assert [(item.kind, item.name) for item in items if item.kind not in ("empty", "reload")] == [
        ("unit", "vllm-edge.service"),
        ("path", "/etc/systemd/system/vllm-edge.service"),
        ("path", "/etc/vllm-spark"),
        ("account", "vllm-spark-edge"),
    ]
    assert remove.plan(NOTHING, RemoveRequest(limited=True))[0] == []
    assert prune.plan(INSTALLED) == ([], [])


def test_a_rollback_elsewhere_leaves_it_alone() -> None:
    held = deployment(current=launch("c"), previous=launch("b"))
    spark = holdings({"demo": held}) | {"history": {"demo": [{"launch": "b" * 64, "holds": True}]}}
    with pytest.raises(RefusedError) as refused:
        rollback_target.targets({"spark1": spark, "mini": INSTALLED})
    assert {refusal.id for refusal in refused.value.refusals} == {"rollback-image-gone"}
    assert all("mini" not in str(refusal) for refusal in refused.value.refusals)


def test_a_bench_ends_on_a_host_without_an_active_deployment() -> None:
    tasks = yaml.load((paths.ROOT / "roles" / "vllm_bench" / "tasks" / "main.yml").read_text(), yaml.CSafeLoader)
    (end,) = [task for task in tasks if task["name"].startswith("End")]
    assert end["when"] == "not spark_precheck_planned.plan.has_rank"
    assert end["ansible.builtin.include_role"] == {"name": "spark_lock", "tasks_from": "leave"}


def test_the_machine_stands_in_the_group_of_the_sparks() -> None:
    """No variable says that a host is no Spark: what the inventory places there does."""
    inventory = edge_cases.inventory([REPLICA], {"open": False, "site": {"spark2": "10.0.0.2", "mini": "10.0.0.3"}})
    others = {name: next(iter(inventory.edges.values())) for name in ("spark2", "mini")}
    found = replace(inventory, sparks=("spark2", "mini"), limit=("mini",), edges=others)
    alone = intent.resolve(found, "mini")
    assert alone.rank is None
    assert alone.edge is not None
    assert [one.host for one in alone.edge.neighbours] == ["spark2"]


def test_a_kernel_without_ipv6_has_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1"
    (tmp_path / "tcp").write_text(f"  sl  local_address\n{line}\n")
    monkeypatch.setattr(spark_ports, "TABLES", (str(tmp_path / "tcp"), str(tmp_path / "tcp6")))
    assert spark_ports.listeners([8000]) == {"4711": 8000}
