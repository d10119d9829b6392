"""State of a deployment on a host: from systemd, the supervisor of a pair, and the liveness timer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.types import Facts

SERVING, LOADING, FROZEN, LOOPING = "serving", "loading", "frozen", "crash-looping"

# The timer probes every 15 s, and a probe that gets no token takes up to 65 s (vllm_spark.node.liveness).
SILENT_S = 120
# systemd's restarts without a start that served for five minutes. One may follow a single crash.
LOOP_RESTARTS = 2


def of_deployment(name: str, facts: Facts, container: Mapping[str, Any] | None) -> str:
    """Return the state of the engine, or that of the supervisor of a running rank: a waiting rank's unit is active."""
    unit = facts["units"].get(f"vllm@{name}.service", {})
    state = facts.get("states", {}).get(name)
    on_disk = facts["status"]["deployments"].get(name)
    if on_disk is None and not container:
        return "not deployed"
    if container and container["state"] != "running":
        return f"container {container['state']}"
    answers = bool(on_disk and on_disk.get("counters"))
    engine = of_unit(unit, on_disk.get("liveness") if on_disk else None, answers=answers)
    if engine and (not state or (state["state"] == SERVING and engine == FROZEN)):
        return engine
    if not state or unit.get("ActiveState") != "active":
        last = f"; {state['last_end']}" if state and state.get("last_end") else ""
        return f"{unit.get('ActiveState', 'unknown')} ({unit.get('SubState', '')}){last}"
    last = f"; before that: {state['last_end']}" if state["state"] != SERVING and state.get("last_end") else ""
    return f"{state['state']} {state['why']}".strip() + last


def of_unit(unit: Mapping[str, Any], liveness: Mapping[str, Any] | None, *, answers: bool = False) -> str:
    """Return the state of the engine; empty if the unit is neither active nor about to restart.

    `unit` has the properties of systemd. `liveness` is what the liveness program has stored, with `age_s`. A result of
    an earlier start of the unit does not count. `answers`: the API has just returned its counters, which it does after
    loading; the first result of the timer may come half a minute later."""
    restarts = int(unit.get("NRestarts") or 0)
    if unit.get("SubState") == "auto-restart":
        return f"{LOOPING}, {_restarts(restarts)}" if restarts else "ended, and starts again"
    if unit.get("ActiveState") != "active":
        return ""
    if liveness and liveness.get("invocation") == unit.get("InvocationID"):
        return _probed(liveness, restarts, answers)
    young = float(unit.get("active_s") or 0) < SILENT_S
    return _starting(restarts, answers) if young else "active, without a result of its liveness timer"


def _probed(liveness: Mapping[str, Any], restarts: int, answers: bool) -> str:
    if liveness["age_s"] > SILENT_S:
        return f"active, its liveness timer is silent for {units.clock(liveness['age_s'])}"
    if not liveness.get("ready"):
        return _starting(restarts, answers)
    if not liveness.get("misses"):
        return SERVING
    return f"{SERVING}, busy" if liveness.get("works") else FROZEN


def _starting(restarts: int, answers: bool) -> str:
    if answers:
        return SERVING
    if restarts >= LOOP_RESTARTS:
        return f"{LOOPING}, {_restarts(restarts)}"
    return f"{LOADING}, after {_restarts(restarts)}" if restarts else LOADING


def _restarts(count: int) -> str:
    return f"{count} restart{'' if count == 1 else 's'}"
