"""The verb lend: which deployments stop so that a Spark has memory for another program, and for how long. Pure."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.text import one_of
from vllm_spark.core.types import Facts
from vllm_spark.core.units import GIB, gib
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.lifecycle import switch_steps
from vllm_spark.lifecycle.switch_steps import SwitchOrder, SwitchSteps
from vllm_spark.node import lease, unit_limits
from vllm_spark.node.host_layout import LEND, deployment_of
from vllm_spark.node.lease import Lease

LENT = register("lent", runbook="lease")
LEND_NOT_STOPPED = register("lend-not-stopped", runbook="lease")
LEND_OUTSIDE = register("lend-outside", runbook="lease")
LEND_TIME = register("lend-time", runbook="lease")
LEND_TOO_MUCH = register("lend-too-much", runbook="lease")
LEND_TWICE = register("lend-twice", runbook="lease")
LEND_UNKNOWN = register("lend-unknown", runbook="lease")

HOUR_S, DAY_S = 3600.0, 86400.0
# A lease of more is a mistake in the unit.
MOST_HOURS = 24 * 366
TIMES = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")
CLOCK = "%H:%M"


@dataclass(frozen=True, slots=True)
class Wish:
    """What an owner asks for. `gib` and `hours` are 0, and `until` is empty, if they are not typed."""

    spark: str
    gib: float = 0.0
    hours: float = 0.0
    until: str = ""
    end: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one host: the lease that it notes, None if it takes no part, and what stops there."""

    lease: Lease | None = None
    ends: bool = False
    stop: tuple[str, ...] = ()

    @property
    def begin(self) -> list[str]:
        """The argv that notes the lease or ends it; empty for a host that takes no part."""
        if self.ends:
            return [LEND, "--end"]
        return [LEND, "--begin", self.lease.text().strip()] if self.lease else []

    def steps(self, drain_s: float) -> SwitchSteps:
        """Return the steps of vllm-switch by which its deployments stop."""
        stop = [*self.stop]
        order = SwitchOrder(involved=True, starts=False, stop=stop, running=stop, others=[], old="")
        stops = {"transition": bool(stop), "restart": False, "report": False}
        return switch_steps.commands(order, stops, "", drain_s, 0)


def parts(wish: Wish, deployments: Sequence[Deployment], facts: Mapping[str, Facts], now: float) -> dict[str, Part]:
    """Return the part of each host of the run. `facts` are those of `status` by host, `now` is in epoch seconds.

    The last deployment of the inventory stops first, and none that need not. A rank stops on all of its Sparks. What
    does not run stays down too. Raises RefusedError."""
    if wish.spark not in facts:
        raise LEND_UNKNOWN.error(
            what=f"{wish.spark or 'no Spark'} is not among the Sparks of this run",
            expected=one_of(sorted(facts), "a Spark"),
            fix=Fix("ansible-playbook status.yml", "It lists them. Leave -l away."),
        )
    leases = {host: lease.parsed(one["status"].get("lease") or {}) for host, one in facts.items()}
    if wish.end:
        lender = getattr(leases[wish.spark], "spark", "")
        return {host: Part(ends=found is not None and found.spark == lender) for host, found in leases.items()}
    until, place = _end_of(wish, now), {one.name: number for number, one in enumerate(deployments)}
    own = facts[wish.spark]
    stop = _stops(wish, own, place)
    stays = _running(own) - {*stop}
    lent = sorted({*own["placed"]} - stays, key=lambda name: place.get(name, len(place)))
    found = {}
    for host, one in facts.items():
        ranks = [name for name in lent if host == wish.spark or name in _ranks_of(deployments, host)]
        here = [name for name in ranks if name in one["placed"]]
        held = leases[host]
        if here and held and held.spark != wish.spark:
            raise LEND_TWICE.error(
                what=f"{', '.join(held.lent)} of {host} are lent: {held.why}",
                expected="one lease on a Spark",
                fix=Fix(f"vllm-spark lend {held.spark} --end", "It ends the other one."),
            )
        kept = [name for name in (held.lent if held else ()) if name not in here and host != wish.spark]
        runs = tuple(name for name in here if name in _running(one))
        noted = Lease(wish.spark, wish.gib, until, "vllm-spark lend", (*here, *kept))
        found[host] = Part(noted, stop=runs) if here or host == wish.spark else Part()
    _refuse_outside(deployments, stop, facts)
    return found


def _end_of(wish: Wish, now: float) -> float:
    """Return the end of a lease in epoch seconds, by the clock of this machine. Raises RefusedError."""
    until = now + wish.hours * HOUR_S
    if wish.until:
        until = _moment(wish.until, now)
    if not (wish.gib > 0 and bool(wish.hours) != bool(wish.until) and now < until <= now + MOST_HOURS * HOUR_S):
        typed = f"--gib {wish.gib:g} --hours {wish.hours:g}" + (f" --until {wish.until!r}" if wish.until else "")
        raise LEND_TIME.error(
            what=f"lend has {typed}",
            expected="--gib above 0, and one of --hours above 0 and --until with a time of the next year",
            fix=Fix(
                f"vllm-spark lend {wish.spark} --gib 40 --hours 3", "Or --until 18:30, or --until '2027-01-31 18:30'."
            ),
        )
    return until


def _moment(text: str, now: float) -> float:
    """Return a time of a day, or of the next 24 hours; 0 for a text that is none."""
    for form in TIMES:
        with suppress(ValueError, OverflowError):
            return time.mktime(time.strptime(text, form))
    with suppress(ValueError):
        clock, today = time.strptime(text, CLOCK), time.localtime(now)
        for day in (0, 1):
            # mktime takes the 32nd of a month for the first of the next one.
            fields = (today.tm_year, today.tm_mon, today.tm_mday + day, clock.tm_hour, clock.tm_min, 0, 0, 0, -1)
            if (found := time.mktime(fields)) > now:
                return found
    return 0.0


def _stops(wish: Wish, own: Facts, place: Mapping[str, int]) -> list[str]:
    """Return which deployments stop. One that runs and is not in the inventory stops before all others. Raises
    RefusedError."""
    total, available = own["memory"]["total"], own["memory"]["available"]
    rooms: dict[str, Mapping[str, Any]] = {
        name: (own["records"].get(name) or {}).get("room") or {} for name in own["placed"]
    }
    floor = max((int(room.get("floor_bytes", 0)) for room in rooms.values()), default=0)
    running = sorted(_running(own) & {*rooms}, key=lambda name: place.get(name, len(place)), reverse=True)
    takes = {name: unit_limits.needed(rooms[name], total) - int(rooms[name].get("floor_bytes", 0)) for name in running}

    def free(stop: Collection[str]) -> int:
        """Return what is left for another program: not more than is available, nor than the budgets leave."""
        stays = sum(size for name, size in takes.items() if name not in stop)
        return min(available + sum(takes[name] for name in stop), total - stays) - floor

    wanted, stop = wish.gib * GIB, list[str]()
    for name in running:
        if free(stop) < wanted:
            stop.append(name)
    if free(stop) < wanted:
        raise LEND_TOO_MUCH.error(
            what=f"{wish.spark} would have {gib(max(free(stop), 0))} for another program without any deployment, and "
            f"{gib(floor)} stay free for the host",
            expected=f"{wish.gib:g} GiB",
            fix=Fix(
                f"vllm-spark lend {wish.spark} --gib {max(free(stop), GIB) // GIB} --hours 3",
                "Or end what holds the rest.",
            ),
        )
    for name in reversed(stop[:]):
        others = [other for other in stop if other != name]
        stop = others if free(others) >= wanted else stop
    return stop


def _running(facts: Facts) -> set[str]:
    return {deployment_of(unit) for unit in facts["running_units"]}


def _ranks_of(deployments: Sequence[Deployment], host: str) -> set[str]:
    return {one.name for one in deployments if host in one.hosts and len(one.hosts) > 1}


def _refuse_outside(deployments: Sequence[Deployment], stop: Collection[str], facts: Mapping[str, Facts]) -> None:
    """Raise RefusedError if a rank of what stops is on a Spark that this run leaves out."""
    for one in (one for one in deployments if one.name in stop):
        if absent := [host for host in one.hosts if host not in facts]:
            raise LEND_OUTSIDE.error(
                what=f"{one.name} would stop, and has a rank on {', '.join(absent)}, which this run leaves out",
                expected="all of its Sparks, because its ranks stop together",
                fix="leave -l away: lend touches no Spark that it has no need of.",
            )


def refusal(name: str, host: str, why: str) -> Refusal:
    """Return why a verb must not start a deployment: its memory is lent."""
    return LENT(
        what=f"{name} is lent on {host}: {why}",
        expected="a deployment that is not lent",
        fix=Fix(f"vllm-spark lend {host} --end", "It ends the lease now."),
    )


def not_stopped(host: str, why: str) -> Refusal:
    """Return the refusal of a host on which a unit did not stop. The lease holds."""
    return LEND_NOT_STOPPED(
        what=f"what is lent on {host} did not stop: {why}",
        expected="stopped units",
        fix=Fix(f"ansible-playbook collect.yml -l {host}", "The same command again stops what still runs."),
    )


def line(part: Part, *, acts: bool) -> str:
    """Return what is lent on a host and what stops for it; empty for a host without a part, and for an end, of which
    `ended` tells. `acts`: outside of check mode."""
    if part.lease is None:
        return "" if acts or not part.ends else "the lease would end, and what is lent would start where memory is free"
    does = "stopped" if acts else "would stop"
    stopped = f"{' and '.join(part.stop)} {does}" if part.stop else "nothing has to stop"
    stays = f"; {', '.join(part.lease.lent)} stay down and come back at the end" if part.lease.lent else ""
    return f"lent until {lease.when(part.lease.until)}: {stopped}{stays}"


def ended(told: Mapping[str, Any]) -> str:
    """Return what an early end has done on a host. `told`: what lend has printed."""
    back = f"{' and '.join(told['started'])} start again" if told["started"] else "nothing starts now"
    return f"the lease has ended: {back}" + (f"; {told['waits']}" if told["waits"] else "")


def free(wish: Wish, told: Mapping[str, Any]) -> str:
    """Return how much memory another program has now. `told`: what lend has printed for --await."""
    held = f", and {told['holder']}" if told["available"] < wish.gib * GIB and told["holder"] else ""
    return f"{gib(told['available'])} are available{held}"
