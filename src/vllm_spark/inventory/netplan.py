"""The direct link of two Sparks: from the inventory and the facts of a host to a netplan file, and the test by ping.

Facts are what plugins/module_utils/spark_fabric.py and plugins/modules/spark_netplan.py return. Pure: no I/O, no
Ansible. fabric.py chooses among links that exist; this module plans one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import FabricFacts, NetdevFacts, NetplanFacts
from vllm_spark.inventory import link_config, netplan_refusals
from vllm_spark.inventory.link_config import LinkConfig, LinkEnds, plan_refusal

FABRIC_WAY_LOST = register("fabric-way-lost", runbook="fabric-way-lost")
FABRIC_PING_SIZE = register("fabric-ping-size", runbook="fabric-mtu")
FABRIC_PING = register("fabric-ping", runbook="fabric-no-answer")

# IPv4 and ICMP headers, which the size of a ping does not include.
HEADERS = 28
SMALL_PING = 56


class Ping(TypedDict):
    """One ping of the peer. `size` is in bytes of payload."""

    netdev: str
    subnet: str
    peer: str
    size: int


class PingResult(Ping):
    """A ping, and the exit status (`rc`) and output (`said`) of its command, as roles/spark_fabric passes them."""

    rc: int
    said: str


class LinkPlan(TypedDict):
    """The steps of the role on one host. `move` are the files to put aside, `known_as` are the names of the peer in
    known_hosts, `notes` are for the operator."""

    host: str
    peer: str
    path: str
    content: str
    move: list[str]
    addresses: dict[str, str]
    mtu: int
    known_as: str
    pings: list[Ping]
    notes: list[str]


def pair(host: str, fabrics: Mapping[str, object], sparks: Sequence[str], limit: Sequence[str]) -> LinkEnds:
    """Return the two ends of the link of `host`, from the inventory alone. `fabrics` is vllm_fabric by host. Raises
    RefusedError."""
    own, refusals = link_config.parse(host, fabrics[host], sparks)
    if own is None:
        raise RefusedError(refusals)
    if not fabrics.get(own.peer):
        refusals.append(plan_refusal(f"{own.peer}, the peer of {host}, has no vllm_fabric", "one on both hosts"))
        raise RefusedError(refusals)
    other, faults = link_config.parse(own.peer, fabrics[own.peer], sparks)
    refusals += faults
    if other is None:
        raise RefusedError(refusals)
    refusals += link_config.mismatches(own, other)
    if own.peer not in limit:
        refusals.append(
            plan_refusal(
                f"{host} is to be linked with {own.peer}, which this run leaves out",
                "both ends in one run",
                f"-l {host},{own.peer}.",
            )
        )
    if refusals:
        raise RefusedError(refusals)
    return LinkEnds(own, other)


def plan(ends: LinkEnds, fabric: FabricFacts, netplan: NetplanFacts, *, replace: bool) -> LinkPlan:
    """Return what to do on the host of `ends.own`. Raises RefusedError with every fault of the host."""
    refusals = list(netplan_refusals.refusals(ends.own, fabric, netplan, replace=replace))
    if refusals:
        raise RefusedError(refusals)
    own, other = ends.own, ends.other
    return LinkPlan(
        host=own.host,
        peer=own.peer,
        path=netplan_refusals.FILE,
        content=netplan_yaml(own, preferred=any(file.get("unbound") for file in netplan["files"])),
        move=[file["path"] for file in netplan_refusals.conflicts(own, netplan)],
        addresses={twin.netdev: str(twin.address) for twin in own.twins},
        mtu=own.mtu,
        known_as=",".join([own.peer, *(str(twin.address.ip) for twin in other.twins)]),
        pings=[
            Ping(netdev=twin.netdev, subnet=str(twin.subnet), peer=str(end.address.ip), size=size)
            for twin, end in ends.rails
            for size in (own.mtu - HEADERS, SMALL_PING)
        ],
        notes=netplan_refusals.notes(own, netplan),
    )


def netplan_yaml(config: LinkConfig, *, preferred: bool = False) -> str:
    """Return the netplan file.

    It names no renderer, so the host keeps its own: NetworkManager on DGX OS. `optional` lets the host boot without
    the cable. There is no route and no link-local address, because only the pair uses this link.

    `preferred` gives the netdevs' profiles a priority. Without it, NetworkManager keeps a profile of its own that names
    no netdev on one of them, because it activates the profile that was used last.
    """
    lines = [
        f"# vllm-spark: the direct link to {config.peer}. fabric.yml writes this file;",
        "# fabric.yml -e vllm_fabric_state=absent brings back what was here before.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for twin in config.twins:
        lines += [
            f"    {twin.netdev}:",
            f"      addresses: [{twin.address}]",
            f"      mtu: {config.mtu}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      link-local: []",
            "      optional: true",
        ]
        if preferred:
            lines.append('      networkmanager: {passthrough: {connection.autoconnect-priority: "100"}}')
    return "\n".join(lines) + "\n"


def judge_pings(
    link: Mapping[str, Any], pings: Sequence[PingResult], netdevs: Mapping[str, NetdevFacts]
) -> tuple[list[str], list[Refusal]]:
    """Return (a line per subnet whose full-size ping was answered, a refusal per subnet whose was not).

    `link` is a LinkPlan, or what topology.link_tests returns. `pings` are the results of its pings, `netdevs` the
    host's after netplan was applied.
    """
    lines, refusals = [], []
    for full, small in zip(pings[::2], pings[1::2], strict=True):
        if full["rc"] == 0:
            lines.append(f"✓ {_route(full)}: {_format_answers(full)}")
        else:
            refusals.append(_ping_refusal(link, full, small, netdevs.get(full["netdev"])))
    return lines, refusals


def lost_refusal(host: str, guard_s: int, reason: str) -> Refusal:
    """Return the refusal for a host that does not answer a new connection after netplan was applied."""
    return FABRIC_WAY_LOST(
        what=f"{host} does not answer over a new connection since netplan was applied ({reason})",
        expected=f"an answer; without one the host restores its old files by itself, {guard_s} s after they were "
        "changed",
        fix=f"wait for that, then read `ssh -t {host} sudo journalctl -u vllm-spark-fabric-guard` and "
        f"`ssh -t {host} sudo netplan --debug generate`.",
    )


def _ping_refusal(link: Mapping[str, Any], full: PingResult, small: PingResult, netdev: NetdevFacts | None) -> Refusal:
    output = full["said"].strip().splitlines()
    reason = next((line for line in output if "error" in line or "loss" in line), output[-1] if output else "no output")
    mtu = full["size"] + HEADERS
    if small["rc"] == 0:
        return FABRIC_PING_SIZE(
            what=f"{link['host']}: {_route(full)}: {small['size']} bytes come back and {full['size']} undivided do "
            f"not ({reason})",
            expected=f"MTU {mtu} on both ends and on every device between them",
            fix=f"a direct cable; or a switch that carries {mtu}; or vllm_fabric.mtu: 1500 on both hosts.",
        )
    cable = "a cable" if netdev and netdev["carrier"] else "no cable, or its peer is off"
    return FABRIC_PING(
        what=f"{link['host']}: {_route(full)}: no answer ({reason}); {full['netdev']} has {cable}",
        expected="the peer's answer on each subnet",
        fix=f"check that the cable joins the ports that the inventory names on {link['host']} and {link['peer']} "
        "(ibdev2netdev shows which are Up), then `ansible-playbook fabric.yml` again.",
    )


def _route(ping: Ping) -> str:
    return f"{ping['subnet']} {ping['netdev']} → {ping['peer']}"


def _format_answers(ping: PingResult) -> str:
    """Return "3 of 3 with 8972 bytes undivided, 0.14 ms" from ping's own summary."""
    count = re.search(r"(\d+) packets transmitted, (\d+) received", ping["said"])
    times = re.search(r"= [\d.]+/([\d.]+)/", ping["said"])
    answers = f"{count[2]} of {count[1]}" if count else "answers"
    return f"{answers} with {ping['size']} bytes undivided" + (f", {times[1]} ms" if times else "")
