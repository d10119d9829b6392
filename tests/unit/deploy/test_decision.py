"""Decision about a unit after its files are installed."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.deploy import decision, plan
from vllm_spark.deploy.images import ImageSteps
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.transfer import weights

ENV = "/etc/vllm-spark/demo/env"
LAUNCH = "/etc/vllm-spark/demo/launch"
UNIT = "/etc/systemd/system/vllm@.service"
STOP = ["vllm@old.service"]


def decide(changes: dict[str, Any], paths: list[str], *, check_mode: bool = False) -> decision.Decision:
    document = {**plan.Plan(env_path=ENV, timer="liveness.timer").to_json(), **changes}
    return decision.decide(document, paths, check_mode=check_mode)


# (change, transition, state, daemon_reload)
NOTHING = (False, False, "started", False)
START = (True, True, "started", False)
RESTART = (True, True, "restarted", False)
RELOAD = (True, False, "started", True)


@pytest.mark.parametrize(
    ("changes", "paths", "expected"),
    [
        ({}, [], NOTHING),
        # Other files take effect with the next start. The plan has compared the launch with the running container.
        ({}, [LAUNCH], NOTHING),
        ({"settled": False}, [LAUNCH], START),
        ({"settled": False, "state": "restarted"}, [LAUNCH], RESTART),
        ({}, [ENV], RESTART),
        ({}, [UNIT], RELOAD),
        ({"reload": True}, [], RELOAD),
        ({"stop_units": STOP}, [], START),
    ],
)
def test_decide(changes: dict[str, Any], paths: list[str], expected: tuple[bool, bool, str, bool]) -> None:
    decided = decide(changes, paths)
    assert (decided.change, decided.transition, decided.state, decided.daemon_reload) == expected
    assert decided.restart == (decided.state == "restarted")
    assert (decided.report, decided.start_timer) == (False, True)


def test_check_mode_only_reports() -> None:
    decided = decide({"stop_units": STOP}, [ENV, UNIT], check_mode=True)
    assert (decided.report, decided.transition) == (True, True)
    assert (decided.change, decided.daemon_reload, decided.start_timer) == (False, False, False)
    assert not decide({}, [], check_mode=True).report


@pytest.mark.parametrize(
    ("changes", "paths", "edge_changed", "expected"),
    [
        ({"proven": True}, [], False, False),
        ({"proven": True}, [], True, True),
        ({"proven": False}, [], False, True),
        ({"proven": True, "settled": False}, [], False, True),
        ({"proven": True}, [ENV], False, True),
    ],
)
def test_a_launch_that_keeps_running_is_proven_once(
    changes: dict[str, Any], paths: list[str], edge_changed: bool, expected: bool
) -> None:
    document = {**plan.Plan(env_path=ENV).to_json(), **changes}
    decided = decision.decide(document, paths, check_mode=False).to_json()
    assert decision.proves_all(document, decided, edge_changed) is expected


def test_a_worker_has_no_timer() -> None:
    assert not decide({"timer": ""}, []).start_timer


def test_an_idle_host_without_units_changes_nothing(facts: dict[str, Any]) -> None:
    idle, _ = plan.of_host({"spark1": HostIntent("spark1")}, {"spark1": {**facts, "units": {}}}, "spark1", "test")
    decided = decision.decide(idle.to_json(), [file.path for file in idle.files], check_mode=False)
    assert not idle.has_rank
    assert not decided.change


@pytest.mark.parametrize(
    ("settled", "pull", "check_mode", "can"),
    [(False, True, False, True), (False, False, True, False), (True, True, True, False), (True, False, True, True)],
)
def test_can_judge(settled: bool, pull: bool, check_mode: bool, can: bool) -> None:
    steps = ImageSteps(builds=[{"image": "x"}] if pull else [])
    assert decision.can_judge(plan.Plan(settled=settled, images=steps).to_json(), check_mode) is can


@pytest.mark.parametrize(
    ("units", "containers", "occupied"), [([], {}, False), (["vllm@a.service"], {}, True), ([], {"vllm-a": {}}, True)]
)
def test_is_occupied(units: list[str], containers: dict[str, Any], occupied: bool, facts: dict[str, Any]) -> None:
    facts["docker"]["containers"] = containers
    assert decision.is_occupied({**facts, "running_units": units}) is occupied


@pytest.mark.parametrize(
    ("states", "verify", "needed"),
    [
        ([], True, False),
        ([{"manifest": True, "unread": 0}], False, False),
        ([{"manifest": True, "unread": 0}], True, True),
        ([{"manifest": True, "unread": 0}, {"manifest": True, "unread": 7}], False, True),
        # The state of its files is unknown, so there is no comparison.
        ([{"manifest": False, "unread": 7}], True, False),
    ],
)
def test_which_weights_are_hashed(states: list[dict[str, Any]], verify: bool, needed: bool) -> None:
    assert weights.needs_check(states, verify) is needed
