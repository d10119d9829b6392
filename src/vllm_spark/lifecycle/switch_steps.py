"""Commands of a switch on one host, and the result of all hosts together. Pure.

The order of the steps is that of `switch` in vllm_spark.node.switch. roles/vllm_switch runs the same steps, one task
each, because the ranks of a pair must wait for each other between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from vllm_spark.lifecycle import interruption, switch_report
from vllm_spark.lifecycle.interruption import AfterCtrlC
from vllm_spark.node.host_layout import SWITCH_PROGRAM
from vllm_spark.verify import startup


class SwitchOrder(TypedDict):
    """The deployments that a switch stops and starts on one host. Names are without `vllm@`."""

    involved: bool  # the host takes part in the switch
    starts: bool  # the host is one of the new deployment
    stop: list[str]
    running: list[str]  # those of `stop` that run
    others: list[str]  # what runs and is left alone
    old: str  # what returns if the switch fails; empty if nothing ran


class HostRun(TypedDict):
    """The result of a switch on one host. Times are in seconds of the controller's clock."""

    host: str
    others: list[str]
    stop: list[str]
    old: str
    changes: bool  # a unit is started, restarted or stopped here
    drained: Mapping[str, Any]  # output of --step=drain
    steps: Mapping[str, Any]  # output of --step=change
    judged: Mapping[str, Any]  # result of vllm_verify
    total_s: float  # from before the stop to the last gate
    judged_s: float  # its part in vllm_verify


@dataclass(frozen=True, slots=True)
class SwitchRequest:
    """The request of the operator, and the hosts of the new deployment."""

    to: str
    deployments: object  # vllm_deployments of the inventory
    hosts: Sequence[str]
    return_allowed: bool  # the old deployments return if the switch fails


@dataclass(frozen=True, slots=True)
class SwitchSteps:
    """The argv of each step of vllm-switch on one host. An empty argv means that the host skips the step."""

    drain: list[str]
    change: list[str]
    settle: list[str]
    back: list[str]
    report: bool  # check mode, and outside check mode the host would change

    def to_json(self) -> dict[str, Any]:
        """Return the steps as an action returns them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """The result of a switch, from the view of one host."""

    ok: bool  # no step and no gate has failed on any host
    missed: str  # what failed, of all hosts
    settle: bool  # enable the new deployment on this host and disable the old one
    go_back: bool  # restore the old deployments
    record: bool  # write the judged gates to the history of this host
    report: bool  # this host reports the switch
    lines: list[str] = field(default_factory=list)  # the report

    def to_json(self) -> dict[str, Any]:
        """Return the result as an action returns it."""
        return asdict(self)


def commands(
    order: SwitchOrder, decision: Mapping[str, Any], to: str, drain_s: object, memory_s: object
) -> SwitchSteps:
    """Return the steps of one host. `decision` is deploy.decision.Decision as JSON; the timeouts are passed on as the
    operator typed them."""
    transition, how = decision["transition"], "restart" if decision["restart"] else "start"
    stops = [f"--stop={name}" for name in order["stop"]]
    starts = [to] if order["starts"] else []
    old = [order["old"]] if order["old"] else []
    memory = f"--memory-s={memory_s}"

    first, others = (order["running"] or [""])[0], order["running"][1:]

    def argv(step: str, *args: str) -> list[str]:
        return [SWITCH_PROGRAM, f"--step={step}", *args]

    return SwitchSteps(
        drain=argv("drain", f"--drain-s={drain_s}", first, *(f"--stop={name}" for name in others)) if first else [],
        change=argv("change", f"--how={how}", memory, *stops, *starts) if transition else [],
        settle=settle_command(order["stop"], to if order["starts"] else "") if transition else [],
        back=argv("change", "--anyway", memory, *([f"--stop={to}"] if starts else []), *old),
        report=transition and decision["report"],
    )


def if_interrupted(orders: Sequence[SwitchOrder], to: str, hosts: Sequence[str]) -> AfterCtrlC:
    """Return what Ctrl-C leaves once the first server may have stopped. `orders` are those of all hosts of the run."""
    stops = sorted({name for order in orders for name in order["stop"]})
    returns = sorted({order["old"] for order in orders} - {""})
    return interruption.of_start(to, stops, returns, f"`ansible-playbook stop.yml -l {','.join(hosts)}` ends it")


def settle_command(disable: Sequence[str], enable: str) -> list[str]:
    """Return the argv that changes what a boot starts. `enable` may be empty."""
    return [SWITCH_PROGRAM, "--step=settle", *(f"--stop={name}" for name in disable), *([enable] if enable else [])]


def missed(runs: Sequence[HostRun], hosts: Collection[str]) -> str:
    """Return what failed: the steps of all hosts, otherwise the gates of `hosts`, those of the new deployment."""
    judged = {run["host"]: run["judged"] for run in runs}
    failed_steps = [str(run["steps"].get("said") or "") for run in runs]
    causes = startup.first_causes({host: judged[host] for host in hosts if host in judged})
    return "\n".join(filter(None, failed_steps)) or "\n".join(filter(None, dict.fromkeys(causes.values())))


def result(request: SwitchRequest, runs: Sequence[HostRun], host: str) -> SwitchResult:
    """Return the result for `host`. `runs` holds every host of the switch. The old deployments return only if one ran
    on some host: otherwise the new one keeps running for inspection."""
    failure = missed(runs, request.hosts)
    own = next(run for run in runs if run["host"] == host)
    reports = not failure and host == runs[0]["host"]
    return SwitchResult(
        ok=not failure,
        missed=failure,
        settle=not failure and own["changes"],
        go_back=bool(failure) and request.return_allowed and any(run["old"] for run in runs),
        record=own["changes"] and "holds" in own["judged"],
        report=reports,
        lines=switch_report.success_report(runs, request.deployments, request.to) if reports else [],
    )
