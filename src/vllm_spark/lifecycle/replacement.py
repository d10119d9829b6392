"""A deploy that takes the place of another deployment: what it stops, and what returns if it fails. Pure.

The steps on the host are those of a switch (switch_steps). The boot default changes with the last step, so the run
after an interrupted one still knows what it replaces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_spark.inventory import deployment
from vllm_spark.lifecycle import interruption, switch, switch_report, switch_steps
from vllm_spark.lifecycle.interruption import AfterCtrlC
from vllm_spark.lifecycle.rollback import ROLLED_BACK
from vllm_spark.lifecycle.switch_steps import SwitchOrder
from vllm_spark.node.host_layout import deployment_of
from vllm_spark.verify import startup

# Timeout for the release of the memory of the deployment that stops, in seconds, as vllm_switch_memory_s.
MEMORY_S = 60


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The plan of one host of the deployment as JSON, and the units that run on the host."""

    plan: Mapping[str, Any]
    running: Collection[str]

    @property
    def stop(self) -> list[str]:
        """The deployments that stop here."""
        return [deployment_of(unit) for unit in self.plan["stop_units"]]

    @property
    def old(self) -> str:
        """The deployment that returns here; empty if none ran and none would start with the next boot."""
        return deployment_of(switch.before(self.plan["stop_units"], self.running))


@dataclass(frozen=True, slots=True)
class Replacement:
    """The part of one host. The argv are those of vllm-switch; an empty one means that the host skips the step."""

    replaces: bool  # on some host of the deployment another one stops
    may_return: bool  # what stops may return, because all of its hosts in this run are of this deployment
    starts: bool  # the unit is started or restarted, and nothing else stops
    old: str  # what returns on this host; empty if nothing does
    stopped: list[str] = field(default_factory=list)  # what stops on all hosts of the deployment
    change: list[str] = field(default_factory=list)
    settle: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)
    settle_back: list[str] = field(default_factory=list)
    ok: bool = True  # no step has failed on any host
    missed: str = ""  # what failed, of all hosts

    def to_json(self) -> dict[str, Any]:
        """Return the part as an action returns it."""
        return asdict(self)


def of_host(
    hosts: Mapping[str, HostPlan],
    host: str,
    decision: Mapping[str, Any],
    inventory: object,
    play_hosts: Collection[str],
) -> Replacement:
    """Return the part of one host. `hosts` has every host of the deployment, `inventory` is vllm_deployments,
    `decision` a deploy.decision.Decision as JSON. In check mode (no `change`) nothing is replaced."""
    own = hosts[host]
    stopped = sorted({name for each in hosts.values() for name in each.stop})
    if not stopped or decision["report"]:
        return Replacement(replaces=False, may_return=False, starts=decision["change"], old="")
    to = deployment_of(own.plan["unit"])
    order: SwitchOrder = {
        "involved": True,
        "starts": True,
        "stop": own.stop,
        "running": [],
        "others": [],
        "old": own.old,
    }
    steps = switch_steps.commands(order, decision, to, 0, MEMORY_S)
    returning = {each.old for each in hosts.values()} - {""}
    placed = {each.name: each.hosts for each in deployment.parse(inventory)}
    elsewhere = [name for name in returning if (set(placed.get(name, ())) & set(play_hosts)) - set(hosts)]
    return Replacement(
        replaces=True,
        may_return=bool(returning) and not elsewhere,
        starts=False,
        old=own.old,
        stopped=stopped,
        change=steps.change,
        settle=steps.settle,
        back=steps.back,
        settle_back=switch_steps.settle_command([to], own.old),
    )


def if_interrupted(
    hosts: Mapping[str, HostPlan], host: str, decision: Mapping[str, Any], own: Replacement
) -> AfterCtrlC | None:
    """Return what Ctrl-C leaves from now on, None where nothing changes. The arguments are those of of_host, `own` is
    its result."""
    plan, limit = hosts[host].plan, ",".join(hosts)
    if not (own.replaces or own.starts):
        return None
    if plan["undoable"]:
        otherwise = f"`ansible-playbook rollback.yml -l {limit}` returns to the launch before"
    else:
        otherwise = "" if decision["restart"] else f"`ansible-playbook stop.yml -l {limit}` ends it"
    returns = sorted({each.old for each in hosts.values()} - {""})
    return interruption.of_start(deployment_of(plan["unit"]), own.stopped, returns, otherwise)


def changes_server(own: Mapping[str, Any], decision: Mapping[str, Any]) -> bool:
    """Return True if the unit of this host starts, takes the place of another one, or in check mode would change.
    `own` is a Replacement, `decision` a Decision, both as JSON."""
    return bool(own["starts"] or own["replaces"] or decision["report"])


def failure(steps: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what failed in the step `change`, by host the output of vllm-switch; empty if nothing did."""
    return "\n".join(f"{host}: {done['said']}" for host, done in steps.items() if done.get("said"))


def report(to: str, missed: str, outcomes: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the message after a failed deploy whose place the old deployments took again.

    `outcomes`: host -> (output of vllm-switch for the start of the old one, result of vllm_verify on it)."""
    ends = [
        f"on {host} {switch_report.returned(restored, judged)}"
        for host, (restored, judged) in outcomes.items()
        if restored.get("name")
    ]
    what = f"{to} missed its gates and was stopped; what it had replaced came back: {', '.join(ends)}"
    fix = startup.next_step(missed, f"correct the recipe or the inventory of {to}, and deploy.")
    return f"{missed}\n{ROLLED_BACK(what=what, expected='a launch that passes its gates', fix=fix)!s}"
