"""A deploy that takes the place of another deployment: its steps, and what returns if it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.fake_ansible import FakeRun
from vllm_spark.lifecycle import replacement, rollback
from vllm_spark.lifecycle.replacement import HostPlan, Replacement

PROGRAM = "/usr/local/bin/vllm-switch"
DECISION = {"transition": True, "restart": False, "report": False, "change": True}
INVENTORY = [
    {"name": "tiny", "recipe": "everything", "hosts": ["spark1"], "active": False},
    {"name": "mine", "recipe": "everything", "hosts": ["spark1"]},
    {"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"], "active": False},
]
BOTH = ["spark1", "spark2"]
TINY, PAIR = "vllm@tiny.service", "vllm@pair.service"


def host_plan(*stop: str, running: tuple[str, ...] = (), unit: str = "vllm@mine.service") -> HostPlan:
    return HostPlan({"unit": unit, "stop_units": list(stop)}, running)


def of_host(hosts: dict[str, HostPlan], play: list[str], **decision: bool) -> Replacement:
    return replacement.of_host(hosts, "spark1", {**DECISION, **decision}, INVENTORY, play)


def test_the_steps_are_those_of_a_switch_and_a_boot_starts_the_old_one_until_the_end() -> None:
    result = of_host({"spark1": host_plan(TINY, running=(TINY,))}, BOTH)
    assert (result.replaces, result.may_return, result.starts, result.old) == (True, True, False, "tiny")
    assert result.change == [PROGRAM, "--step=change", "--how=start", "--memory-s=60", "--stop=tiny", "mine"]
    assert result.settle == [PROGRAM, "--step=settle", "--stop=tiny", "mine"]
    assert result.back == [PROGRAM, "--step=change", "--anyway", "--memory-s=60", "--stop=mine", "tiny"]
    assert result.settle_back == [PROGRAM, "--step=settle", "--stop=mine", "tiny"]


@pytest.mark.parametrize(
    ("hosts", "play", "decision", "expected"),
    [
        # (replaces, may_return, starts, old)
        ({"spark1": host_plan()}, BOTH, {}, (False, False, True, "")),
        ({"spark1": host_plan(TINY)}, BOTH, {"report": True, "change": False}, (False, False, False, "")),
        # Stopped by an interrupted run, and still enabled.
        ({"spark1": host_plan(TINY)}, BOTH, {}, (True, True, False, "tiny")),
        # Half of a pair: its other rank is not of this run, and waits.
        ({"spark1": host_plan(PAIR, running=(PAIR,))}, ["spark1"], {}, (True, True, False, "pair")),
        # Its other Spark gets another deployment in this run.
        ({"spark1": host_plan(PAIR, running=(PAIR,))}, BOTH, {}, (True, False, False, "pair")),
        # A pair takes the place of one solo; its other rank only stops.
        ({"spark1": host_plan(), "spark2": host_plan(TINY, running=(TINY,))}, BOTH, {}, (True, True, False, "")),
    ],
)
def test_what_a_deploy_replaces(
    hosts: dict[str, HostPlan], play: list[str], decision: dict[str, bool], expected: tuple[bool, bool, bool, str]
) -> None:
    result = of_host(hosts, play, **decision)
    assert (result.replaces, result.may_return, result.starts, result.old) == expected


PLAN = {"settled": False, "undoable": True, "proven": False, "acts": True}
FAILED = {"holds": False, "missed": "no token"}


@pytest.mark.parametrize(
    ("may_return", "judged", "enabled", "expected"),
    [
        # (restore, go_back, settle)
        (True, FAILED, True, (False, True, False)),
        (True, {"holds": True}, True, (False, False, True)),
        (True, FAILED, False, (False, False, False)),
        # An earlier launch of the new deployment is better than none.
        (False, FAILED, True, (True, False, True)),
    ],
)
def test_the_old_deployment_returns_if_the_new_one_fails(
    may_return: bool, judged: dict[str, Any], enabled: bool, expected: tuple[bool, bool, bool]
) -> None:
    replaced = {"replaces": True, "may_return": may_return, "settle": ["vllm-switch"]}
    decided = rollback.decide(PLAN, judged, [PLAN], [judged], enabled=enabled, replacement=replaced)
    assert (decided.restore, decided.go_back, decided.settle) == expected


def test_a_failed_deploy_without_a_return_names_the_command() -> None:
    text = rollback.failure_report("no token", FAILED, {"restored": {}}, {}, ["tiny"])
    assert text.startswith("no token\ntiny was stopped by this deploy")
    assert "Fix: ansible-playbook switch.yml -e to=tiny" in text


def resolved(hosts: list[str]) -> dict[str, Any]:
    return {"spec": {"deployment": {"name": "mine", "hosts": hosts}}}


def test_the_action_decides_from_the_plans_of_all_hosts() -> None:
    planned = {"plan": {"unit": "vllm@mine.service", "stop_units": [TINY], "undoable": False}}
    registered = {"spark_precheck_resolved": resolved(["spark1"]), "spark_precheck_planned": planned}
    run = FakeRun(hostvars={"spark1": {**registered, "spark_precheck_box": {"facts": {"running_units": [TINY]}}}})
    decided = run.act("vllm_replacement", phase="decide", deployments=INVENTORY, decision=DECISION)
    assert (decided["replaces"], decided["old"], decided["stopped"]) == (True, "tiny", ["tiny"])
    assert decided["if_interrupted"]["undo"] == "`ansible-playbook switch.yml -e to=tiny` brings tiny back"


STOPS = "`ansible-playbook stop.yml -l spark1` ends it"
RETURNS = "`ansible-playbook rollback.yml -l spark1` returns to the launch before"


@pytest.mark.parametrize(
    ("undoable", "decision", "undo"),
    [
        (False, {}, STOPS),
        # The same launch starts again, for another secret.
        (False, {"restart": True}, ""),
        (True, {"restart": True}, RETURNS),
        (True, {"change": False}, None),
        (True, {"change": False, "report": True}, None),
    ],
)
def test_ctrl_c_names_a_rollback_only_where_there_is_a_launch_to_return_to(
    undoable: bool, decision: dict[str, bool], undo: str | None
) -> None:
    hosts = {"spark1": HostPlan({"unit": "vllm@mine.service", "stop_units": [], "undoable": undoable}, ())}
    own = of_host(hosts, BOTH, **decision)
    told = replacement.if_interrupted(hosts, "spark1", {**DECISION, **decision}, own)
    assert (told and told.undo) == undo


def test_ctrl_c_of_a_pair_that_replaces_a_solo_names_the_solo_on_both_sparks() -> None:
    plans = {host: {"unit": "vllm@pair.service", "stop_units": [], "undoable": False} for host in BOTH}
    hosts = {
        "spark1": HostPlan(plans["spark1"], ()),
        "spark2": HostPlan({**plans["spark2"], "stop_units": [TINY]}, [TINY]),
    }
    told = {host: replacement.if_interrupted(hosts, host, DECISION, of_host(hosts, BOTH)) for host in BOTH}
    assert told["spark1"] == told["spark2"]
    assert told["spark1"] is not None
    assert told["spark1"].continues.startswith("tiny stops for pair; pair goes on loading if it was started")
    assert told["spark1"].undo == "`ansible-playbook switch.yml -e to=tiny` brings tiny back"


@pytest.mark.parametrize(
    ("said", "expected"), [("", (True, "")), ("10 GiB are available", (False, "spark1: 10 GiB are available"))]
)
def test_the_action_reads_the_result_of_the_step(said: str, expected: tuple[bool, str]) -> None:
    changed = {"__vllm_server_change": {"stdout": json.dumps({"ok": not said, "said": said})}}
    hostvars = {"spark1": {"spark_precheck_resolved": resolved(["spark1", "spark2"]), **changed}}
    done = FakeRun(hostvars=hostvars).act("vllm_replacement", phase="result", replacement={"old": "tiny"})
    assert (done["ok"], done["missed"], done["old"]) == (*expected, "tiny")


def test_the_failure_names_what_came_back_on_which_host() -> None:
    back = {"__vllm_switch_restored": {"name": "tiny", "ok": True}, "__vllm_switch_again": {"holds": True}}
    hostvars = {"spark1": {"spark_precheck_resolved": resolved(["spark1", "spark2"]), **back}}
    with pytest.raises(Exception, match="on spark1 tiny serves again, and its gates hold") as failed:
        FakeRun(hostvars=hostvars).act("vllm_replacement", phase="report", missed="no token")
    assert str(failed.value).startswith("no token\nmine missed its gates")
    assert "spark2" not in str(failed.value)


@pytest.mark.parametrize(("ok", "acts"), [(True, True), (False, True), (True, False)])
def test_a_step_that_failed_counts_as_a_missed_gate(ok: bool, acts: bool) -> None:
    """A deploy that changes nothing takes back nothing of an earlier turn on the Spark."""
    plan = {**PLAN, "acts": acts}
    replaced = Replacement(True, True, False, "tiny", settle=["x"], ok=ok, missed="" if ok else "no memory").to_json()
    hostvars = {
        "spark1": {
            "vllm_server_replacement": replaced,
            "vllm_verify_judged": {"holds": True} if ok else {"skipped": True},
            "spark_precheck_planned": {"plan": plan},
        }
    }
    decided = FakeRun(hostvars=hostvars).act("vllm_rollback", phase="decide", hosts=["spark1"], plan=plan, enabled=True)
    assert (decided["go_back"], decided["settle"], decided["missed"]) == (not ok, ok and acts, not ok)
    assert decided["judged"].get("missed", "") == ("" if ok else "no memory")
