"""The verb switch: the deployments that a run considers, and its refusals. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core import near_names, text
from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.deploy import unit_state
from vllm_spark.inventory import deployment
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.lifecycle import lending

SWITCH_RUNS_ALREADY = register("switch-runs-already", runbook="switch-refused")
SWITCH_UNKNOWN = register("switch-unknown", runbook="switch-refused")
SWITCH_EDGE = register("switch-edge", runbook="switch-refused")
SWITCH_OUTSIDE = register("switch-outside", runbook="switch-refused")


def choose(raw: object, to: str, limit: Collection[str]) -> list[dict[str, Any]]:
    """Return the deployments of this run: `to` is active, and those that share a Spark with it are not, unless the
    inventory has both active. All others are left out, so that the run does not touch them. Raises RefusedError."""
    everything = deployment.parse(raw)
    assert isinstance(raw, Sequence)  # noqa: S101  parse has checked it; the type checker does not know
    target = next((placed for placed in everything if placed.name == to), None)
    if target is None:
        raise RefusedError([_unknown(to, everything)])
    absent = [host for host in target.hosts if host not in limit]
    if absent:
        raise RefusedError([_outside(target, "starts", absent)])
    near = [entry for entry, placed in zip(raw, everything, strict=True) if set(placed.hosts) & set(target.hosts)]
    return [{**entry, "active": entry["name"] == to or (target.active and entry.get("active", True))} for entry in near]


def before(stop_units: Sequence[str], running: Collection[str]) -> str:
    """Return the unit that returns if the switch fails: of those that the switch stops, the one that runs, otherwise
    the one that is enabled, because an interrupted run had stopped it. Empty if there is none."""
    return next((unit for unit in stop_units if unit in running), stop_units[0] if stop_units else "")


def refusals(chosen: object, plans: Mapping[str, Mapping[str, Any]], limit: Collection[str]) -> Iterator[Refusal]:
    """Yield the reasons why a switch must not begin. `plans` are those of this run by host, as JSON."""
    known = {placed.unit: placed for placed in deployment.parse(chosen)}
    # Several may be active on one Spark; the plans are those of the one that starts.
    starts = {plan["unit"] for plan in plans.values()}
    target = max((placed for placed in known.values() if placed.active), key=lambda placed: placed.unit in starts)
    stops = dict.fromkeys(unit for plan in plans.values() for unit in plan["stop_units"])
    for placed in (known[unit] for unit in stops):
        absent = [host for host in placed.hosts if host not in limit]
        if absent:
            yield _outside(placed, "stops", absent)
    # A Spark on which nothing stops gets its edge from the switch: no engine is on the port.
    edges = [host for host, plan in plans.items() if plan["edge"]["state"] and plan["has_rank"] and plan["stop_units"]]
    for host in (host for host in edges if not plans[host]["edge"]["runs"]):
        yield SWITCH_EDGE(
            what=f"vllm_edge has changed, and the edge of {host} does not run as it says",
            expected="a switch between deployments behind one edge",
            fix=Fix(f"ansible-playbook deploy.yml -l {','.join(target.hosts)}", "Then the switch."),
        )
    yield from (lending.refusal(target.name, host, plan["lent"]) for host, plan in plans.items() if plan.get("lent"))
    others = (unit_state.LAUNCH_CHANGED, unit_state.EDITED)
    changed = [host for host, plan in plans.items() if plan.get("reason") in others]
    if changed:
        yield SWITCH_RUNS_ALREADY(
            what=f"{target.name} runs on {' and '.join(changed)} with another launch than the inventory's",
            expected="a deployment that does not run yet, or runs as planned",
            fix=f"set {target.name} active in the inventory, then deploy.",
        )


def _unknown(to: str, everything: Sequence[Deployment]) -> Refusal:
    names = [f"{placed.name} on {'+'.join(placed.hosts)}" for placed in everything]
    close = near_names.close_names(to, [placed.name for placed in everything])
    return SWITCH_UNKNOWN(
        what=f"vllm_deployments has no {to}" if to else "no deployment is named",
        expected=text.one_of(names, "a deployment; vllm_deployments is empty"),
        fix=Fix(f"ansible-playbook switch.yml -e to={close[0] if len(close) == 1 else 'NAME'}"),
    )


def _outside(placed: Deployment, act: str, absent: Collection[str]) -> Refusal:
    return SWITCH_OUTSIDE(
        what=f"the limit leaves out {', '.join(absent)} of deployment {placed.name}, which this switch {act}",
        expected="all of its hosts, because a deployment is one service",
        fix="leave -l away: a switch touches no Spark that it has no need of.",
    )
