"""States of a single-Spark deployment in `status`: loading, crash-looping, frozen, busy and serving."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.lifecycle import engine_state

UNIT = {"ActiveState": "active", "SubState": "running", "NRestarts": "0", "InvocationID": "i", "active_s": 600.0}
RESULT = {"ready": True, "misses": 0, "invocation": "i", "age_s": 5.0}


@pytest.mark.parametrize(
    ("unit", "result", "expected"),
    [
        ({}, {}, "serving"),
        # A crash before the last five good minutes is not a loop.
        ({"NRestarts": "1"}, {}, "serving"),
        ({}, {"ready": False}, "loading"),
        ({"active_s": 3.0}, None, "loading"),
        # The result is of an earlier start, which served.
        ({"active_s": 3.0, "InvocationID": "j"}, {}, "loading"),
        ({"active_s": 3.0, "NRestarts": "1"}, None, "loading, after 1 restart"),
        ({"active_s": 3.0, "NRestarts": "3"}, None, "crash-looping, 3 restarts"),
        ({"NRestarts": "3"}, {"ready": False}, "crash-looping, 3 restarts"),
        (
            {"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "2"},
            None,
            "crash-looping, 2 restarts",
        ),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, None, "ended, and starts again"),
        ({}, {"misses": 1, "works": False}, "frozen"),
        ({}, {"misses": 1}, "frozen"),
        ({}, {"misses": 1, "works": True}, "serving, busy"),
        # An unknown is reported as unknown.
        ({}, None, "active, without a result of its liveness timer"),
        ({}, {"age_s": 300.0}, "active, its liveness timer is silent for 05:00"),
        ({"ActiveState": "failed"}, {}, ""),
        ({"ActiveState": "inactive"}, None, ""),
    ],
)
def test_states(unit: dict[str, Any], result: dict[str, Any] | None, expected: str) -> None:
    liveness = None if result is None else {**RESULT, **result}
    assert engine_state.of_unit({**UNIT, **unit}, liveness) == expected


@pytest.mark.parametrize("result", [None, {**RESULT, "ready": False}])
def test_an_api_that_answers_has_loaded(result: dict[str, Any] | None) -> None:
    unit = {**UNIT, "active_s": 20.0, "NRestarts": "2"}
    assert engine_state.of_unit(unit, result, answers=True) == "serving"
    assert engine_state.of_unit(unit, result) == "crash-looping, 2 restarts"


@pytest.mark.parametrize(("misses", "expected"), [(0, "serving"), (1, "frozen")])
def test_the_head_of_a_pair_serves_until_its_engine_is_frozen(misses: int, expected: str) -> None:
    facts: Any = {
        "units": {"vllm@pair.service": UNIT},
        "states": {"pair": {"state": "serving", "why": ""}},
        "status": {"deployments": {"pair": {"liveness": {**RESULT, "misses": misses, "works": False}}}},
    }
    assert engine_state.of_deployment("pair", facts, {"state": "running"}) == expected
