"""What a deployment does on a host: the state that its programs have written (node/deployment_state.py). Pure.

systemd contradicts it only if no program could write, as after a kill of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.types import Facts
from vllm_spark.node.deployment_state import GAVE_UP, LENT, LOADING, SERVING, STOPPED

# The timer probes every 15 s, and a probe that gets no token takes up to 65 s (vllm_spark.node.liveness).
SILENT_S = 120
ENDED = ("inactive", "failed")


@dataclass(frozen=True, slots=True)
class Shown:
    """A state as `status` shows it. `since` is in ISO 8601; it is empty for a state that no program has written."""

    state: str
    why: str = ""
    since: str = ""
    last_end: str = ""


def of_deployment(name: str, facts: Facts, container: Mapping[str, Any] | None) -> Shown:
    """Return what a deployment does."""
    on_disk = facts["status"]["deployments"].get(name)
    if on_disk is None and not container:
        return Shown("not deployed")
    if container and container["state"] != "running":
        return Shown(f"container {container['state']}")
    unit, state = facts["units"].get(f"vllm@{name}.service", {}), facts.get("states", {}).get(name)
    answers = bool(on_disk and on_disk.get("counters"))
    if state is None or not state["written"]:
        return _unwritten(unit, state, answers)
    return _written(unit, state, on_disk.get("liveness") if on_disk else None, answers=answers)


def _written(
    unit: Mapping[str, Any], state: Mapping[str, Any], liveness: Mapping[str, Any] | None, *, answers: bool
) -> Shown:
    since = iso(state["since"])
    if contradicts(unit, state):
        why = f"its state is {state['state']} since {since}, and no program has written what came after it"
        return Shown(f"{unit['ActiveState']} ({unit.get('SubState', '')})", why, "", state["last_end"])
    shown = Shown(state["state"], state["why"], since, state["last_end"])
    if shown.state == LOADING and answers:
        return replace(shown, state=SERVING, why="its API answers")
    if shown.state == SERVING and liveness and liveness["age_s"] > SILENT_S:
        return replace(shown, why=f"its liveness timer is silent for {units.clock(liveness['age_s'])}")
    return shown


def contradicts(unit: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return True if the unit cannot be in a state that was written. That of a pair that gave up may run, without an
    engine."""
    active = unit.get("ActiveState")
    ended, runs = state["state"] in (STOPPED, GAVE_UP, LENT), state["state"] == GAVE_UP and state.get("peers")
    return (active == "active" and ended and not runs) or (active in ENDED and not ended)


def _unwritten(unit: Mapping[str, Any], state: Mapping[str, Any] | None, answers: bool) -> Shown:
    """Return the state of a deployment that has not run since the boot, or was started by an older toolkit."""
    active = unit.get("ActiveState", "unknown")
    if active not in ("inactive", "unknown"):
        why = "an older toolkit has started it, and its state is not written before its next start"
        return Shown(SERVING if answers else f"{active} ({unit.get('SubState', '')})", "" if answers else why)
    return Shown(state["state"], state["why"]) if state else Shown(f"{active} ({unit.get('SubState', '')})")


def iso(time_s: float) -> str:
    """Return a time in epoch seconds as UTC in ISO 8601."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
