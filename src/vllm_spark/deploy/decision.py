"""Decision about a host's unit after its files are installed. Pure: a plan and the written paths in, a decision out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core.types import Facts
from vllm_spark.deploy import images
from vllm_spark.node.host_layout import UNIT_DIR


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes to the unit of a host. In check mode only `report` and `transition` can be true."""

    report: bool  # check mode: something would change
    change: bool  # something changes: a transition, or systemd must read unit files again
    transition: bool  # a unit is started, restarted or stopped, now or outside check mode
    restart: bool
    state: str  # restarted or started
    daemon_reload: bool
    start_timer: bool

    def to_json(self) -> dict[str, Any]:
        """Return the decision as an action returns it."""
        return asdict(self)


def decide(plan: Mapping[str, Any], changed_paths: Collection[str], *, check_mode: bool) -> Decision:
    """Decide from a plan (deploy.plan.Plan.to_json) and the paths that vllm_files has written, or would write."""
    env_changed = plan["env_path"] in changed_paths
    # systemd reads unit files only on request. A run that was interrupted may have left some unread (plan.reload).
    units_changed = plan["reload"] or any(path.startswith(f"{UNIT_DIR}/") for path in changed_paths)
    transition = not plan["settled"] or env_changed or bool(plan["stop_units"])
    # systemd would stop what excludes a lent deployment before it asks whether that may start.
    transition, units_changed = (found and not plan.get("lent") for found in (transition, units_changed))
    changes = transition or units_changed
    # A unit reads its env file only when it starts.
    state = "restarted" if env_changed else plan["state"]
    return Decision(
        report=changes and check_mode,
        change=changes and not check_mode,
        transition=transition,
        restart=state == "restarted",
        state=state,
        daemon_reload=units_changed and not check_mode,
        start_timer=bool(plan["timer"]) and not check_mode,
    )


def can_judge(plan: Mapping[str, Any], check_mode: bool) -> bool:
    """Return True if the gates can be judged now. In check mode nothing is started or pulled, so only a server that
    already runs as planned has gates to judge. One that is lent has none."""
    if plan.get("lent"):
        return False
    return not check_mode or (plan["settled"] and not images.any_step(plan["images"]))


def proves_all(plan: Mapping[str, Any], decision: Mapping[str, Any], edge_changed: bool) -> bool:
    """Return True if a deploy judges every gate. A server that keeps running, whose launch has passed all of them and
    whose edge is as before, is asked only what costs little. `verify` always judges all. `decision` is empty if the
    deploy changes nothing before the gates."""
    return bool(edge_changed or decision.get("transition") or not plan["proven"])


def is_occupied(facts: Facts) -> bool:
    """Return True if a unit or a container of the toolkit is on the host."""
    return bool(facts["running_units"] or facts["docker"]["containers"])
