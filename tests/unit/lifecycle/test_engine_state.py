"""What `status` says that a deployment does: what its programs have written, unless systemd proves that none could."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.lifecycle import engine_state
from vllm_spark.lifecycle.engine_state import Shown
from vllm_spark.node import deployment_state

UNIT = {"ActiveState": "active", "SubState": "running"}
STATE = {"state": "serving", "why": "", "since": 1.7e9, "last_end": "", "peers": [], "written": True}
SINCE = "2023-11-14T22:13:20Z"
DOWN = {"ActiveState": "inactive", "SubState": "dead"}
FAILED = {"ActiveState": "failed", "SubState": "failed"}
AGAIN = {"ActiveState": "activating", "SubState": "auto-restart"}


def shown(state: dict[str, Any] | None, unit: dict[str, Any], **on_disk: Any) -> Shown:
    facts: Any = {
        "units": {"vllm@demo.service": unit},
        "states": {"demo": {**STATE, **state}} if state is not None else {},
        "status": {"deployments": {"demo": on_disk}},
    }
    return engine_state.of_deployment("demo", facts, {"state": "running"})


@pytest.mark.parametrize(
    ("state", "unit"),
    [
        ("wanted", UNIT),
        ("loading", UNIT),
        ("serving", UNIT),
        ("draining", UNIT),
        ("failed", AGAIN),
        ("failed", UNIT),
        ("stopped", DOWN),
        ("stopped", FAILED),
        ("gave up", FAILED),
        # The unit stops, and its last program has not written yet.
        ("serving", {"ActiveState": "deactivating"}),
    ],
)
def test_the_written_state_is_the_word(state: str, unit: dict[str, Any]) -> None:
    assert state in deployment_state.STATES
    assert shown({"state": state, "why": "by ann", "last_end": "x"}, unit) == Shown(state, "by ann", SINCE, "x")


@pytest.mark.parametrize(
    ("state", "unit", "says"),
    [
        ("serving", FAILED, "failed (failed)"),
        ("loading", DOWN, "inactive (dead)"),
        ("draining", DOWN, "inactive (dead)"),
        ("failed", FAILED, "failed (failed)"),
        ("wanted", DOWN, "inactive (dead)"),
        ("gave up", UNIT, "active (running)"),
        ("stopped", UNIT, "active (running)"),
    ],
)
def test_systemd_contradicts_what_no_program_could_write(state: str, unit: dict[str, Any], says: str) -> None:
    why = f"its state is {state} since {SINCE}, and no program has written what came after it"
    assert shown({"state": state}, unit) == Shown(says, why)


def test_a_pair_that_gave_up_has_a_supervisor() -> None:
    assert shown({"state": "gave up", "peers": ["spark2"]}, UNIT).state == "gave up"


def test_a_state_that_no_program_has_written_comes_from_the_boot_or_an_older_toolkit() -> None:
    boot = {"state": "wanted", "why": "it starts with this Spark", "written": False}
    assert shown(boot, DOWN) == Shown("wanted", "it starts with this Spark")
    assert shown(boot, UNIT, counters=[{"running": 0.0}]) == Shown("serving")
    old = shown(boot, UNIT)
    assert (old.state, old.why.partition(" has")[0]) == ("active (running)", "an older toolkit")
    assert shown(None, {}) == Shown("unknown ()")


def test_an_api_that_answers_has_loaded() -> None:
    assert shown({"state": "loading"}, UNIT, counters=[{"running": 0.0}]).state == "serving"
    assert shown({"state": "loading"}, UNIT, counters=[]).state == "loading"


def test_a_liveness_timer_that_is_silent_is_said() -> None:
    assert shown({}, UNIT, liveness={"age_s": 300.0}).why == "its liveness timer is silent for 05:00"
    assert shown({}, UNIT, liveness={"age_s": 5.0}).why == ""


def test_a_container_that_does_not_run_is_said_first() -> None:
    facts: Any = {"units": {}, "states": {"demo": STATE}, "status": {"deployments": {}}}
    assert engine_state.of_deployment("demo", facts, {"state": "paused"}).state == "container paused"
    assert engine_state.of_deployment("demo", facts, None).state == "not deployed"
