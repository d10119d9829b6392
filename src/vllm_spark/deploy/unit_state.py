"""State of a deployment's unit on one host: what a deploy must start, restart or stop, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_spark.core.types import ContainerFacts, EnvFacts, Facts
from vllm_spark.deploy import hand_edit
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.deployment_state import GAVE_UP, LENT, WANTED
from vllm_spark.node.host_layout import LAUNCH_LABEL

LAUNCH_CHANGED = "its launch changed"
EDITED = "it runs a launch that was edited by hand"


def next_state(spec: Spec, facts: Facts, fingerprint: str) -> tuple[str, str]:
    """Return `restarted` or `started`, and the reason. The label of the running container decides, so that a run that
    was interrupted between the files and the restart is completed by the next one."""
    if why := lent(spec, facts):
        return "started", f"lent: {why}"
    running = _running_container(facts, spec.deployment.container)
    if running is None:
        return _without_engine(spec, facts)
    if (other := running["labels"].get(LAUNCH_LABEL) != fingerprint) or hand_edit.on_host(spec, facts).runs:
        return "restarted", LAUNCH_CHANGED if other else EDITED
    env = facts.get("env")
    if env and not env["same"]:
        return "restarted", f"its env file changes: {env_change(env)}"
    if facts.get("env_mtimes", {}).get(spec.deployment.name, 0) > running["started"]:
        return "restarted", "its env file changed"
    return "started", "it runs as planned" if settled(spec, facts) else "its unit is not enabled"


def lent(spec: Spec, facts: Facts) -> str:
    """Return until when and by whom the memory of a deployment is lent on this host, empty if it is not: then no verb
    starts it."""
    state = facts.get("states", {}).get(spec.deployment.name)
    return state["why"] if state and state["state"] == LENT else ""


def _without_engine(spec: Spec, facts: Facts) -> tuple[str, str]:
    state = facts.get("states", {}).get(spec.deployment.name)
    if facts["units"].get(spec.deployment.unit, {}).get("ActiveState") != "active":
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


def settled(spec: Spec, facts: Facts) -> bool:
    """Return True if the unit is enabled and active, and on the head its liveness timer is active; or if it is lent."""
    if lent(spec, facts):
        return True
    unit, timer = (facts["units"].get(name, {}) for name in (spec.deployment.unit, spec.deployment.timer))
    enabled = unit.get("ActiveState") == "active" and unit.get("UnitFileState") == "enabled"
    return enabled and (spec.rank > 0 or timer.get("ActiveState") == "active")


def units_to_stop(spec: Spec, facts: Facts) -> list[str]:
    """Return the units of inactive deployments that run on the host or would start with the next boot."""
    return [unit for name in spec.inactive if occupies(unit := f"vllm@{name}.service", facts)]


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


def _running_container(facts: Facts, name: str) -> ContainerFacts | None:
    container = facts["docker"].get("containers", {}).get(name)
    return container if container and container["state"] == "running" else None


def occupies(unit: str, facts: Facts) -> bool:
    """Return True if the unit runs or is enabled."""
    return unit in (*facts["running_units"], *facts["enabled_units"])
