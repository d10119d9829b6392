"""The clock of the host against the controller's and the peer's."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.types import Facts
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext

# Own figure: a laptop that has just woken is seconds off and does no harm; minutes mean no NTP.
OFF_S = 30
# Both clocks off by 0.4 s in opposite directions, and as much again.
APART_S = 2

# The least and the most that one clock is ahead of another, in seconds.
Offset = tuple[float, float]


@check(
    "clock-off",
    runbook="clock-skew",
    severity="warning",
    needs=("time", "controller_time"),
    what="the clock of {host} is {ahead} this machine's: certificates of registries and of the model hub may look "
    "expired or not yet valid, and the times of its journal do not match those of other hosts",
    fix="`ssh -t {host} timedatectl` on the Spark and here; `sudo timedatectl set-ntp true` where it is not "
    "synchronised.",
    source="X.509 validity (RFC 5280 4.1.2.5). Ray's token holds no time",
)
def clock_off(context: HostContext) -> Iterator[Observation]:
    offset = clock_offset(context.facts)
    if offset and _exceeds(offset, OFF_S):
        side = "ahead of" if offset[0] > 0 else "behind"
        yield Observation({"ahead": f"{_middle(offset)} {side}"}, evidence=f"time {_interval(offset)}")


@check(
    "clocks-apart",
    runbook="clock-skew",
    severity="warning",
    needs=("time", "controller_time"),
    what="the clocks of {host} and {peer} are {apart} apart: the logs of the two ranks cannot be compared by time, and "
    "NTP keeps at most one of the clocks",
    fix="`sudo timedatectl set-ntp true` on both; without internet configure {peer} to use {host} (chrony).",
    source="systemd-timesyncd slews below 0.4 s and steps above it (NTP_MAX_ADJUST), so a clock that it keeps is never "
    "further off",
)
def clocks_apart(context: HostContext) -> Iterator[Observation]:
    own = clock_offset(context.facts)
    for worker in context.workers:
        other = clock_offset(worker.facts)
        if own and other:
            apart = (own[0] - other[1], own[1] - other[0])
            if _exceeds(apart, APART_S):
                values = {"peer": worker.host, "apart": _middle(apart)}
                yield Observation(values, evidence=f"time {_interval(apart)}")


def clock_offset(facts: Facts) -> Offset | None:
    """Return the least and the most seconds that a host's clock is ahead of the controller's, or None if unknown.

    The host read its clock twice between the request and the response, so the true offset is between the two.
    """
    host, controller = facts.get("time"), facts.get("controller_time")
    if not host or not controller:
        return None
    least, most = host["ended"] - controller["after"], host["began"] - controller["before"]
    # least > most means that a clock was set in between.
    return (least, most) if least <= most else None


def _exceeds(offset: Offset, limit: float) -> bool:
    """Return True if the whole interval is beyond the limit, in either direction."""
    return offset[0] > limit or offset[1] < -limit


def _middle(offset: Offset) -> str:
    return f"{abs(sum(offset) / 2):.1f} s"


def _interval(offset: Offset) -> str:
    return f"between {offset[0]:+.1f} s and {offset[1]:+.1f} s"
