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
    """The two ends of one subnet from the view of one host: its netdev, and the addresses of both."""

    netdev: str
    subnet: str
    own: str
    peer: str


class Received(TypedDict):
    """What one host received over one subnet, as plugins/module_utils/spark_link_rate.py returns it."""

    netdev: str
    received_bytes: int
    seconds: float
    error: NotRequired[str]


def of_plan(plan: Mapping[str, Any]) -> list[RailEnds]:
    """Return the ends that fabric.yml has configured. `plan` is a LinkPlan as JSON."""
    ends = {
        ping["netdev"]: RailEnds(
            netdev=ping["netdev"],
            subnet=ping["subnet"],
            own=plan["addresses"][ping["netdev"]].partition("/")[0],
            peer=ping["peer"],
        )
        for ping in plan["pings"]
    }
    return list(ends.values())


def of_facts(host: str, facts_by_host: Mapping[str, FabricFacts]) -> list[RailEnds]:
    """Return the ends of the subnets that two hosts share. Empty if they share none, which has a refusal of its own."""
    fabrics = [HostFabric.parse(name, facts) for name, facts in facts_by_host.items()]
    side = list(facts_by_host).index(host)
    joined, _ = links.rails(fabrics)
    return [
        RailEnds(
            netdev=rail[side].netdev.name,
            subnet=str(rail[side].subnet),
            own=str(rail[side].address.ip),
            peer=str(rail[1 - side].address.ip),
        )
        for rail in joined
    ]


def judge(
    host: str, ends: Sequence[RailEnds], received: Sequence[Received], least_gbps: float
) -> tuple[list[str], list[Refusal]]:
    """Return (a line per subnet, a refusal per subnet over which no TCP came). A slow subnet is a line in the format of
    a refusal: the pair works."""
    lines, refusals = [], []
    for rail, result in zip(ends, received, strict=True):
        route = f"{rail['subnet']} {rail['netdev']} ← {rail['peer']}"
        if result.get("error") or not result["seconds"]:
            refusals.append(_no_tcp(host, rail, route, result.get("error") or "nothing was received"))
            continue
        gbps = result["received_bytes"] * 8 / result["seconds"] / GIGA
        slow = gbps < least_gbps
        lines.append(f"warning {_slow(host, route, gbps, least_gbps)}" if slow else f"✓ {route}: {gbps:.1f} Gb/s")
    return lines, refusals


def _slow(host: str, route: str, gbps: float, least_gbps: float) -> Refusal:
    return FABRIC_SLOW(
        what=f"fabric-slow: {host}: {route} received {gbps:.1f} Gb/s",
        expected=f"{least_gbps:g} Gb/s or more (vllm_fabric_least_gbps); the pair works, with that bandwidth",
        fix="stop the servers, reboot both Sparks with the cable in, and measure again.",
    )


def _no_tcp(host: str, rail: RailEnds, route: str, error: str) -> Refusal:
    return FABRIC_TCP(
        what=f"{host}: {route}: no TCP over this subnet ({error})",
        expected="TCP between the two Sparks on every subnet of the fabric; without it the engine waits for the other "
        "rank until it gives up",
        fix=f"if a firewall is on: `ssh -t {host} sudo ufw allow in on {rail['netdev']}`, and the same on the peer.",
    )
