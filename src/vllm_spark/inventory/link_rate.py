"""The measured rate of each subnet of the fabric: which ends are measured, and the judgement. Pure.

A Spark whose NIC stays in a power limit has a link of 200 Gb/s, all its PCIe lanes and the full MTU, and carries 13
Gb/s (NVIDIA/dgx-spark-playbooks#108). Only a measurement shows that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import FabricFacts
from vllm_spark.inventory import links
from vllm_spark.inventory.links import HostFabric

FABRIC_SLOW = register("fabric-slow", runbook="fabric-slow")
FABRIC_TCP = register("fabric-tcp", runbook="firewall")

GIGA = 1e9


class RailEnds(TypedDict):
    """The two ends of one subnet from the view of one host: its netdev, the addresses of both, and the peer's `host`.

    `turn` is when the two measure, counted from 0 and the same on both: nobody is in two measurements at once. The one
    of the two that is `first` sends first.
    """

    netdev: str
    subnet: str
    own: str
    peer: str
    host: str
    first: bool
    turn: int


class Received(TypedDict):
    """What one host received over one subnet, as plugins/module_utils/spark_link_rate.py returns it."""

    netdev: str
    received_bytes: int
    seconds: float
    error: NotRequired[str]


# What a host received from a peer over one subnet, in Gbit/s.
Rate = tuple[str, str, float]


def of_plan(plan: Mapping[str, Any]) -> list[RailEnds]:
    """Return the ends that fabric.yml has configured or accepted. `plan` is a LinkPlan or a LinkTest as JSON."""
    if "rails" in plan:
        return list(plan["rails"])
    pings = {ping["netdev"]: ping for ping in plan["pings"]}
    return [
        RailEnds(
            netdev=netdev,
            subnet=ping["subnet"],
            own=plan["addresses"][netdev].partition("/")[0],
            peer=ping["peer"],
            host=plan["peer"],
            first=plan["host"] < plan["peer"],
            turn=turn,
        )
        for turn, (netdev, ping) in enumerate(pings.items())
    ]


def of_facts(host: str, facts_by_host: Mapping[str, FabricFacts]) -> list[RailEnds]:
    """Return the ends of the subnets that a host shares with the hosts beside it, in their turns. The hosts are in the
    order of their cables: each shares subnets with the next one, and of three and more the last with the first.

    Over a switch every Spark is then measured with two others, so that a slow cable is slow with both. Empty if no
    subnet is shared, which has a refusal of its own.
    """
    fabrics = [HostFabric.parse(name, facts) for name, facts in facts_by_host.items()]
    number = len(fabrics)
    pairs = [(first, (first + 1) % number) for first in range(number if number > 2 else 1)]  # noqa: PLR2004  a pair has one
    joined = {pair: links.rails([fabrics[side] for side in pair])[0] for pair in pairs}
    most = max(map(len, joined.values()))
    found = [
        RailEnds(
            netdev=rail[side].netdev.name,
            subnet=str(rail[side].subnet),
            own=str(rail[side].address.ip),
            peer=str(rail[1 - side].address.ip),
            host=fabrics[pair[1 - side]].host,
            first=side == 0,
            # Every second pair at once; of an odd number the last pair is alone.
            turn=most * (2 if pair[1] == 0 and number % 2 else pair[0] % 2) + at,
        )
        for pair, rails in joined.items()
        for at, rail in enumerate(rails)
        for side in (0, 1)
        if fabrics[pair[side]].host == host
    ]
    return sorted(found, key=lambda rail: rail["turn"])


def judge(
    host: str, ends: Sequence[RailEnds], received: Sequence[Received], least_gbps: float
) -> tuple[list[str], list[Refusal], list[Rate]]:
    """Return (a line per subnet, a refusal per subnet over which no TCP came, the rates). A slow subnet is a line in
    the format of a refusal: the ranks work."""
    lines, refusals, rates = [], [], []
    for rail, result in zip(ends, received, strict=True):
        route = f"{rail['subnet']} {rail['netdev']} ← {rail['peer']}"
        if result.get("error") or not result["seconds"]:
            refusals.append(_no_tcp(host, rail, route, result.get("error") or "nothing was received"))
            continue
        gbps = result["received_bytes"] * 8 / result["seconds"] / GIGA
        slow = gbps < least_gbps
        rates.append((host, rail["host"], gbps))
        lines.append(f"warning {_slow(host, route, gbps, least_gbps)}" if slow else f"✓ {route}: {gbps:.1f} Gb/s")
    return lines, refusals, rates


def slowest(rates: Sequence[Rate]) -> str:
    """Return a line with the links, the slowest first. A Spark with a slow port is slow with both of its neighbours."""
    by_link: dict[str, float] = {}
    for host, peer, gbps in rates:
        link = " ↔ ".join(sorted((host, peer)))
        by_link[link] = min(gbps, by_link.get(link, gbps))
    (least, gbps), *others = sorted(by_link.items(), key=lambda item: item[1])
    rest = ", ".join(f"{link} {value:.1f}" for link, value in others)
    return f"slowest link, which decides for all ranks: {least} with {gbps:.1f} Gb/s of TCP; {rest}"


def _slow(host: str, route: str, gbps: float, least_gbps: float) -> Refusal:
    return FABRIC_SLOW(
        what=f"fabric-slow: {host}: {route} received {gbps:.1f} Gb/s",
        expected=f"{least_gbps:g} Gb/s or more (vllm_fabric_least_gbps); it works, with that bandwidth",
        fix="stop the servers, reboot both Sparks with the cable in, and measure again.",
    )


def _no_tcp(host: str, rail: RailEnds, route: str, error: str) -> Refusal:
    return FABRIC_TCP(
        what=f"{host}: {route}: no TCP over this subnet ({error})",
        expected="TCP between the two Sparks on every subnet of the fabric; without it the engine waits for the other "
        "rank until it gives up",
        fix=f"if a firewall is on: `ssh -t {host} sudo ufw allow in on {rail['netdev']}`, and the same on the peer.",
    )
