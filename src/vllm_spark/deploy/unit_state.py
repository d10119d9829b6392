"""State of a deployment's unit on one host: what a deploy must start, restart or stop, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_spark.core.types import EnvFacts, Facts
from vllm_spark.deploy import hand_edit
from vllm_spark.deploy.hand_edit import OnHost
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.deployment_state import GAVE_UP, WANTED
from vllm_spark.node.host_layout import LAUNCH_LABEL

LAUNCH_CHANGED = "its launch changed"
EDITED = "it runs a launch that was edited by hand"


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """What a deploy does with the unit of a host. `state` is `restarted` or `started`. `settled`: the unit and the
    liveness timer of a head are enabled and active, or lent, so there is nothing to start. `stop` has the units of
    inactive deployments that run on the host or would start with the next boot."""

    state: str
    reason: str
    settled: bool
    stop: list[str]
    on_host: OnHost


def steps(host: HostContext, fingerprint: str) -> UnitSteps:
    """Return the steps of a host whose launch has this fingerprint."""
    found = hand_edit.on_host(host)
    state, reason = _next_state(host, fingerprint, found)
    stop = [unit for name in host.spec.inactive if occupies(unit := f"vllm@{name}.service", host.facts)]
    return UnitSteps(state, reason, state == "started" and _settled(host), [] if host.lent else stop, found)


def _next_state(host: HostContext, fingerprint: str, found: OnHost) -> tuple[str, str]:
    """Return `restarted` or `started`, and the reason. The label of the running container decides, so that a run that
    was interrupted between the files and the restart is completed by the next one."""
    if host.lent:
        return "started", f"lent: {host.lent}"
    running = host.engine
    if running is None:
        return _without_engine(host)
    if (other := running["labels"].get(LAUNCH_LABEL) != fingerprint) or found.runs:
        return "restarted", LAUNCH_CHANGED if other else EDITED
    env = host.facts.get("env")
    if env and not env["same"]:
        return "restarted", f"its env file changes: {env_change(env)}"
    if host.facts.get("env_mtimes", {}).get(host.spec.deployment.name, 0) > running["started"]:
        return "restarted", "its env file changed"
    return "started", "it runs as planned" if _settled(host) else "its unit is not enabled"


def _without_engine(host: HostContext) -> tuple[str, str]:
    state = host.state
    if host.facts["units"].get(host.spec.deployment.unit, {}).get("ActiveState") != "active":
        return "started", "it is not running"
    # The supervisor of a pair that gave up stays, without an engine.
    if state and state["state"] == GAVE_UP:
        return "restarted", "it gave up"
    # A supervisor reads what it compares when it starts. One that waits or refuses may have read the old files.
    apart = state and state["state"] == WANTED and state["peers"]
    return ("restarted", "its ranks do not run together") if apart else ("started", "it is starting")


def env_change(env: EnvFacts) -> str:
    """Return what a deploy changes in an env file: names of variables, never a value."""
    names = (("added", env["added"]), ("removed", env["removed"]), ("changed", env["changed"]))
    return "; ".join(f"{what} {', '.join(of_kind)}" for what, of_kind in names if of_kind) or "its mode or other lines"


def _settled(host: HostContext) -> bool:
    if host.lent:
        return True
    placed = host.spec.deployment
    unit, timer = (host.facts["units"].get(name, {}) for name in (placed.unit, placed.timer))
    enabled = unit.get("ActiveState") == "active" and unit.get("UnitFileState") == "enabled"
    return enabled and (host.spec.rank > 0 or timer.get("ActiveState") == "active")


def ended_elsewhere(spec: Spec, stop_units: Sequence[str]) -> list[str]:
    """Return a line for each deployment that stops here and has ranks on Sparks that this deployment does not have."""
    lines = []
    for name, hosts in spec.elsewhere.items():
        if f"vllm@{name}.service" in stop_units:
            where, limit = " and ".join(hosts), ",".join(hosts)
            lines.append(
                f"{name} would end on {where} as well: its rank there would wait without this one, and serve nothing. "
                f"ansible-playbook stop.yml -l {limit} would end that rank, "
                f"ansible-playbook deploy.yml -l {limit} replace it"
            )
    return lines


def occupies(unit: str, facts: Facts) -> bool:
    """Return True if the unit runs or is enabled."""
    return unit in (*facts["running_units"], *facts["enabled_units"])
