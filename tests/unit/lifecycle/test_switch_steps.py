"""Commands of a switch on each host, and the result of all hosts together."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.lifecycle import switch_steps
from vllm_spark.lifecycle.switch_steps import HostRun, SwitchOrder, SwitchRequest

PROGRAM = "/usr/local/bin/vllm-switch"
ORDER: SwitchOrder = {
    "involved": True,
    "starts": True,
    "stop": ["a", "c"],
    "running": ["a"],
    "others": [],
    "old": "a",
}
DECISION = {"transition": True, "restart": False, "report": False}
INVENTORY = [
    {"name": "a", "recipe": "everything", "hosts": ["spark1"]},
    {"name": "b", "recipe": "everything", "hosts": ["spark1"], "active": False},
]
REQUEST = SwitchRequest("b", INVENTORY, ["spark1"], return_allowed=True)


def commands(order: dict[str, Any] | None = None, decision: dict[str, Any] | None = None) -> switch_steps.SwitchSteps:
    changed: Any = {**ORDER, **(order or {})}
    return switch_steps.commands(changed, {**DECISION, **(decision or {})}, "b", 30, "60")


def run(**changes: Any) -> HostRun:
    base: HostRun = {
        "host": "spark1",
        "others": [],
        "stop": ["a"],
        "old": "a",
        "changes": True,
        "drained": {},
        "steps": {"said": ""},
        "judged": {"holds": True, "missed": ""},
        "total_s": 3.0,
        "judged_s": 1.0,
    }
    merged: Any = {**base, **changes}
    result: HostRun = merged
    return result


def test_commands_of_a_host_that_changes() -> None:
    steps = commands()
    assert steps.drain == [PROGRAM, "--step=drain", "--drain-s=30", "a"]
    assert steps.change == [PROGRAM, "--step=change", "--how=start", "--memory-s=60", "--stop=a", "--stop=c", "b"]
    assert steps.settle == [PROGRAM, "--step=settle", "--stop=a", "--stop=c", "b"]
    assert steps.back == [PROGRAM, "--step=change", "--anyway", "--memory-s=60", "--stop=b", "a"]
    assert not steps.report


def test_commands_of_a_host_that_only_stops() -> None:
    steps = commands({"starts": False})
    assert steps.change[-1] == "--stop=c"
    assert steps.settle[-1] == "--stop=c"
    assert steps.back == [PROGRAM, "--step=change", "--anyway", "--memory-s=60", "a"]


def test_commands_of_a_host_where_nothing_runs() -> None:
    steps = commands({"stop": [], "running": [], "old": ""}, {"restart": True})
    assert steps.drain == []
    assert steps.change == [PROGRAM, "--step=change", "--how=restart", "--memory-s=60", "b"]
    assert steps.back[-1] == "--stop=b"


@pytest.mark.parametrize(("check_mode", "report"), [(True, False), (False, False)])
def test_a_host_without_a_transition_runs_no_step(check_mode: bool, report: bool) -> None:
    steps = commands({"running": []}, {"transition": False, "report": check_mode})
    assert (steps.drain, steps.change, steps.settle, steps.report) == ([], [], [], report)


def test_check_mode_reports_a_transition() -> None:
    assert commands(decision={"report": True}).report


def test_a_good_switch_settles_and_is_reported_once() -> None:
    runs = [run(), run(host="spark2", old="", judged={})]
    first, second = (switch_steps.result(REQUEST, runs, host) for host in ("spark1", "spark2"))
    assert (first.ok, first.settle, first.go_back, first.record, first.report) == (True, True, False, True, True)
    assert first.lines[0].startswith("b holds its gates 3.0 s after the stop")
    assert (second.ok, second.settle, second.record, second.report, second.lines) == (True, True, False, False, [])


def test_a_switch_that_changed_nothing_leaves_no_entry() -> None:
    result = switch_steps.result(REQUEST, [run(changes=False)], "spark1")
    assert (result.ok, result.settle, result.record) == (True, False, False)


def test_a_failed_step_outweighs_the_gates() -> None:
    runs = [run(steps={"said": "no memory"}, judged={}), run(host="spark2", steps={"said": "no unit"})]
    result = switch_steps.result(REQUEST, runs, "spark2")
    assert (result.ok, result.missed, result.settle) == (False, "no memory\nno unit", False)


@pytest.mark.parametrize(("old", "allowed", "back"), [("a", True, True), ("", True, False), ("a", False, False)])
def test_a_failed_gate_restores_what_ran_on_any_host(old: str, allowed: bool, back: bool) -> None:
    request = SwitchRequest("b", INVENTORY, ["spark1"], return_allowed=allowed)
    runs = [run(old="", judged={"holds": False, "missed": "wrong"}), run(host="spark2", old=old, judged={})]
    for host in ("spark1", "spark2"):
        result = switch_steps.result(request, runs, host)
        assert (result.ok, result.missed, result.go_back, result.lines) == (False, "wrong", back, [])
