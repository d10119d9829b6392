"""Following a start: ready, failed or waiting, and the message at its end."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.verify import startup

TOKEN = {"ready": {"status": 200, "json": {"choices": [{"text": "1"}]}, "seconds": 0.1}}
REFUSED = {"ready": {"error": "ConnectionRefusedError", "seconds": 0.0}}
BAD_FLAG = "vllm serve: error: unrecognized arguments: --swap-space 4"


def probe(**changes: Any) -> dict[str, Any]:
    unit = {"ActiveState": "active", "NRestarts": "0"} | changes.pop("unit", {})
    return {"unit": unit, "running_s": 10.0, "lines": [], "responses": REFUSED} | changes


# probes in their order, and the state after each
STORIES = {
    "ready at once": [(probe(responses=TOKEN), "ready")],
    "loads, then serves": [(probe(), "waiting"), (probe(running_s=50.0), "waiting"), (probe(responses=TOKEN), "ready")],
    "never started": [(probe(unit={"ActiveState": "inactive"}), "failed")],
    "gave up": [(probe(), "waiting"), (probe(unit={"ActiveState": "failed"}), "failed")],
    "known cause, first exit": [
        (probe(), "waiting"),
        (probe(unit={"NRestarts": "1"}, lines=[BAD_FLAG]), "failed"),
    ],
    "unknown cause, second try serves": [
        (probe(), "waiting"),
        (probe(unit={"NRestarts": "1"}, lines=["RuntimeError: something odd"]), "waiting"),
        (probe(unit={"NRestarts": "1"}, responses=TOKEN), "ready"),
    ],
    "unknown cause, twice": [
        (probe(), "waiting"),
        (probe(unit={"NRestarts": "1"}, lines=["RuntimeError: something odd"]), "waiting"),
        (probe(unit={"NRestarts": "2"}), "failed"),
    ],
    "restarts of last week do not count": [(probe(unit={"NRestarts": "7"}), "waiting")],
}


@pytest.mark.parametrize("name", STORIES)
def test_a_start(name: str) -> None:
    watch = startup.StartupWatch(deadline_s=60)
    assert [watch.add(look) for look, _ in STORIES[name]] == [state for _, state in STORIES[name]]


def test_a_failure_names_the_root_cause_and_the_log() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    watch.add(probe(lines=[BAD_FLAG]))
    message = startup.failure(watch, "vllm@demo.service", "spark1")
    assert "--swap-space" in message
    assert " Fix: " in message
    assert message.endswith("Log: ssh -t spark1 sudo journalctl -u vllm@demo.service -e")


def test_a_failure_without_a_log_names_the_command() -> None:
    assert "deploy.yml -l spark1" in startup.failure(startup.StartupWatch(60), "vllm@demo.service", "spark1")


def test_an_exceeded_deadline_names_the_phase() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    line = "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.2s/it]"
    watch.add(probe(lines=[line], running_s=61.0))
    message = "gave no token within 60 s; it was loading weights 50 %"
    assert message in startup.overdue(watch, "vllm@d.service", "spark1")


def test_a_watch_keeps_a_bounded_number_of_lines() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    for _ in range(3):
        watch.add(probe(lines=["x"] * startup.KEPT_LINES))
    assert len(watch.lines) == startup.KEPT_LINES
