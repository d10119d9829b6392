"""The edge of a Spark without an active deployment: what the inventory makes of it, and what deploy, status and a
switch do about it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_edge_site import arguments

from fakes import edge_cases
from fakes.cases import asked, intents
from fakes.deployed_spark import deployed_facts
from fakes.edge_cases import DEMO, FAR_PAIR, OTHER, REPLICA, SITE, SPARE, THIRD
from fakes.fake_ansible import FakeRun
from fakes.loaded_table import table_facts
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import drift, plan
from vllm_spark.edge import config, site, steps
from vllm_spark.inventory import intent
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.lifecycle import switch
from vllm_spark.node import host_layout
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gates import edge as gate

SETTINGS = {"open": False, "site": SITE}
FAR = [REPLICA, SPARE | {"active": False}, THIRD]
ADDRESS = "192.168.1.20"
RUNS = {"ActiveState": "active", "UnitFileState": "enabled"}


def found(**more: Any) -> Any:
    """Return the facts of a Spark without a deployment whose edge runs."""
    edge = {
        "program": True,
        "account": True,
        "files": {},
        "certificate": "",
        "keys": ["ada"],
        "key_hashes": {"a1": "ada"},
        "may_switch": [],
        "batch": [],
    }
    states = {"unit": RUNS, "route": RUNS, "switch": {"ActiveState": "inactive"}}
    holder = {"unit": "vllm-edge.service", "process": "haproxy", "pid": 1, "container": ""}
    return {
        "units": {},
        "running_units": [],
        "ports": {"8000": holder},
        "edge": {**edge, **states},
        "table": table_facts(edge_cases.intent_of(FAR, SETTINGS)),
        **more,
    }


def planned_of(intent_: HostIntent, facts: Any) -> tuple[plan.Plan, list[str]]:
    return plan.of_host({"spark1": intent_}, {"spark1": facts}, "spark1", "test")


def drift_of(intent_: HostIntent, facts: Any, address: str = "") -> drift.Drift:
    return drift.of_host({"spark1": intent_}, {"spark1": facts}, "spark1", "test", address)


def placed_files(edge: Edge) -> dict[str, list[str]]:
    """Return the facts of the files that a deploy places."""
    return {
        file.path: [hashlib.sha256(file.content.encode()).hexdigest(), file.mode]
        for file in steps.files_of(edge, ADDRESS)
    }


def test_a_spark_that_the_site_names_forwards() -> None:
    front = edge_cases.edge_of(FAR, SETTINGS)
    assert front.only_forwards
    assert [one.host for one in front.neighbours] == ["spark2", "spark3"]
    assert config.listeners(front) == ["0.0.0.0:8000"]
    assert steps.state(front, {}) == "present"
    assert Edge.from_json(json.loads(json.dumps(front.to_json()))) == front
    # The other Sparks accept what it forwards, although it serves nothing.
    other = site.routes(edge_cases.edge_of(FAR, SETTINGS, "spark2"))
    assert other is not None
    assert other.members == ("spark1", "spark3")


def test_a_spark_alone_with_a_front_listens_for_it() -> None:
    members = {"open": False, "site": {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}}
    alone = edge_cases.edge_of([REPLICA], members, "spark2")
    assert alone.neighbours == ()
    assert "bind 0.0.0.0:9465 " in config.config(alone, "192.168.1.21")
    assert "bind 0.0.0.0:9465 " not in config.config(edge_cases.edge_of([REPLICA], members), "192.168.1.20")


def test_the_worker_of_a_pair_forwards() -> None:
    worker = edge_cases.resolved([FAR_PAIR, THIRD], SETTINGS)
    assert (worker.rank, worker.edge.only_forwards) == (1, True)
    assert config.listeners(worker.edge) == ["0.0.0.0:8000", "0.0.0.0:8443"]
    assert asked(worker)["edge"]
    assert {8000, 8443} <= set(asked(worker)["ports"])
    assert 9465 not in asked(worker)["ports"]


def test_the_head_of_inactive_deployments_knows_them() -> None:
    front = edge_cases.edge_of([OTHER, *FAR], {**SETTINGS, "switch_by_request": True})
    assert [one.deployment for one in front.backends] == ["other"]
    assert not front.only_forwards
    text = config.config(front, "192.168.1.20")
    assert "backend other\n" in config.route(front)
    assert "bind 0.0.0.0:9465 " in text


@pytest.mark.parametrize(
    ("deployments", "settings"),
    [(FAR, {"open": False}), (FAR, {"open": True}), ([OTHER], SETTINGS)],
)
def test_without_a_site_or_another_spark_with_a_model_there_is_none(
    deployments: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    assert edge_cases.intent_of(deployments, settings).edge is None


def test_a_run_of_the_front_alone_is_no_fault() -> None:
    found = replace(edge_cases.inventory(FAR, SETTINGS), limit=("spark1",))
    alone = intent.resolve(found, "spark1")
    assert (alone.rank, alone.edge is not None) == (None, True)
    with pytest.raises(RefusedError, match="no deployment names spark1"):
        intent.resolve(replace(found, edge={"open": False}), "spark1")
    with pytest.raises(RefusedError, match="vllm_deployments is empty"):
        intent.resolve(replace(found, deployments=[]), "spark1")


def test_a_part_of_the_deployments_does_not_take_the_site_away() -> None:
    """A switch resolves the deployments that share a Spark with its target."""
    everything = [DEMO, OTHER, *FAR]
    whole = edge_cases.inventory(everything, SETTINGS)
    part = edge_cases.inventory([DEMO | {"active": False}, OTHER | {"active": True}], SETTINGS)
    part = replace(part, everywhere=everything)
    before, after = intent.resolve(whole, "spark1").edge, intent.resolve(part, "spark1").edge
    assert before is not None
    assert after is not None
    assert config.config(before, "192.168.1.20") == config.config(after, "192.168.1.20")
    assert intent.resolve(part, "spark3").edge is not None


def test_the_roles_give_the_whole_inventory() -> None:
    (task,) = yaml.safe_load((paths.ROOT / "roles" / "spark_precheck" / "tasks" / "resolve.yml").read_text())
    assert task["vllm_spark.toolkit.vllm_spec"]["everywhere"] == "{{ vllm_deployments | default([]) }}"


def test_the_action_returns_the_edge_and_asks_for_its_facts() -> None:
    settings = {"open": False, "site": {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}}
    run = FakeRun(hostvars={"spark1": {"vllm_edge": settings}, "spark2": {"vllm_edge": settings}})
    result = run.act("vllm_spec", **{**arguments("spark1", settings), "deployments": [REPLICA]})
    assert result["spec"] is None
    assert result["questions"] == {"units": [], "edge": True, "table": True, "ports": [8000]}
    assert Edge.from_json(result["edge"]).neighbours[0].host == "spark2"
    result = run.act("vllm_spec", **{**arguments("spark1", {"open": False}), "deployments": [REPLICA]})
    assert (result.get("edge"), result["questions"]) == (None, None)


def test_the_plan_of_an_idle_spark_has_its_edge() -> None:
    planned, lines = planned_of(edge_cases.intent_of(FAR, SETTINGS), found())
    assert not planned.has_rank
    assert planned.edge == plan.EdgePlan("present", runs=True, judged_alone=True)
    assert lines == [
        "the edge here forwards: https on 0.0.0.0:8000, with a key",
        "the edge asks 192.168.1.21:9465 for model, spare-model of spark2",
        "the edge asks 192.168.1.22:9465 for third-1.5 of spark3",
    ]
    assert planned_of(HostIntent("spark1"), found())[0].edge == plan.EdgePlan()


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        ({"process": "nginx", "pid": 9, "unit": "nginx.service", "container": ""}, True),
        ({"process": "python3", "pid": 9, "unit": "", "container": "vllm-old"}, False),
        ({"process": "haproxy", "pid": 9, "unit": "vllm-edge.service", "container": ""}, False),
        (None, False),
    ],
)
def test_a_port_of_another_program_is_refused(holder: dict[str, Any] | None, refused: bool) -> None:
    front, facts = edge_cases.intent_of(FAR, SETTINGS), found(ports={"8000": holder})
    if not refused:
        assert planned_of(front, facts)
        assert drift_of(front, facts).differs is False
        return
    with pytest.raises(RefusedError, match=r"port 8000 of spark1 is held by nginx .pid 9, unit nginx.service."):
        planned_of(front, facts)
    assert drift_of(front, facts).reasons == ("deploy refuses: front-port",)


def test_an_edge_that_does_not_run_is_drift() -> None:
    front, facts = edge_cases.intent_of(FAR, SETTINGS), found()
    facts["edge"]["unit"] = {"ActiveState": "failed"}
    assert drift_of(front, facts).reasons == ("vllm-edge.service would be started",)


# Change of the files of an edge -> what `status` says that a deploy would change.
EDITED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as planned": ({}, []),
    "another text": ({host_layout.EDGE_CONFIG: ["0", "0640"]}, ["edge: haproxy.cfg is not as planned"]),
    "gone": ({host_layout.EDGE_UNIT_FILE: []}, ["edge: vllm-edge.service is not as planned"]),
    "of a site that let requests start models": (
        {host_layout.EDGE_SWITCH_LIST: ["0", "0640"]},
        ["edge: switch.json is not as planned"],
    ),
}


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_file_is_drift(name: str) -> None:
    changes, reasons = EDITED[name]
    front, facts = edge_cases.intent_of(FAR, SETTINGS), found()
    facts["edge"]["files"] = {**placed_files(edge_cases.edge_of(FAR, SETTINGS)), **changes}
    assert list(drift_of(front, facts, ADDRESS).reasons) == reasons
    # Another address of the inventory is another name of the edge, and no address is no comparison.
    assert drift_of(front, facts, "10.0.0.9").differs
    assert drift_of(front, facts).differs is False


def test_an_edited_file_of_a_head_is_drift(facts: dict[str, Any]) -> None:
    spec_ = edge_cases.resolved([DEMO, REPLICA], SETTINGS)
    host = {**deployed_facts(spec_, facts), "edge": {**found()["edge"], "files": placed_files(spec_.edge)}}
    asked = {"intents": intents({"spark1": spec_}), "facts": {"spark1": host}, "host": "spark1", "toolkit": "x"}
    before = drift.of_host(**asked, address=ADDRESS).reasons
    host["edge"]["files"][host_layout.EDGE_CONFIG] = ["0", "0640"]
    assert drift.of_host(**asked, address=ADDRESS).reasons == (*before, "edge: haproxy.cfg is not as planned")


def test_the_gate_asks_the_edge_where_it_listens() -> None:
    target = EdgeTarget.of_edge(edge_cases.edge_of(FAR, SETTINGS))
    assert (target.address, target.port, target.tls, target.site_port) == ("127.0.0.1", 8000, "own-ca", None)
    assert target.client_url("10.0.0.1") == "https://10.0.0.1:8000"
    assert EdgeTarget.of_edge(edge_cases.edge_of([OTHER, *FAR], SETTINGS)).site_port == 9465
    missed = [verdict.id for verdict in gate.verdicts(target, {"inside": {"error": "refused"}})]
    assert missed == ["answers"]


def test_a_broken_edge_fails_the_task() -> None:
    front = edge_cases.edge_of(FAR, SETTINGS)
    resolved = {"spec": None, "edge": front.to_json()}
    run = FakeRun(
        hostvars={"spark1": {"spark_precheck_resolved": resolved, "ansible_connection": "local"}},
        modules={"vllm_probe": {"probe": {"responses": {"edge": {"error": "refused", "tls": True}}}}},
    )
    with pytest.raises(Exception, match="the edge does not answer on its Spark: refused"):
        run.act("vllm_verify", phase="edge", authority="none")
    assert run.calls[0][1]["edge"]["port"] == 8000
    idle = FakeRun(hostvars={"spark1": {"spark_precheck_resolved": {"spec": None}}})
    assert idle.act("vllm_verify", phase="edge", authority="none")["holds"]
    assert idle.calls == []


def test_the_action_installs_the_edge_of_an_idle_spark(tmp_path: Path) -> None:
    front = edge_cases.edge_of(FAR, SETTINGS)
    hostvars = {
        "spark_precheck_resolved": {"spec": None, "edge": front.to_json()},
        "spark_precheck_box": {"facts": found()},
        "ansible_host": "192.168.1.20",
        "spark_lock_verb": "deploy",
    }
    run = FakeRun(hostvars={"spark1": hostvars}, modules={"vllm_edge_files": {"steps": ["x"], "changed": True}})
    run.act("vllm_edge", authority=str(tmp_path / "edge"), new_authority=False)
    ((_, sent),) = run.calls
    assert sent["config"] == config.config(front, "192.168.1.20")
    assert "BEGIN CERTIFICATE" in sent["authority"]


def test_a_front_does_not_stop_a_switch_elsewhere() -> None:
    idle = plan.Plan(has_rank=False, edge=plan.EdgePlan("present")).to_json()
    busy = plan.Plan(edge=plan.EdgePlan("present", runs=True)).to_json()
    assert not list(switch.refusals([REPLICA], {"spark1": idle, "spark2": busy}, ["spark1", "spark2"]))
