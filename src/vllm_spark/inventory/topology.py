"""`vllm_topology` of the inventory: Sparks whose links something else has configured, such as NVIDIA Sync's assistant.

`fabric` reads their addresses, judges them by the links of cabling.yml, says what it accepts and writes nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, TypedDict

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import FabricFacts
from vllm_spark.inventory import cables, cabling, fabric_notes, fabric_refusals, link_rate, links, netplan
from vllm_spark.inventory.cables import Plug
from vllm_spark.inventory.fabric_refusals import FABRIC_SAME_ADDRESS, FABRIC_SHARED_SUBNET
from vllm_spark.inventory.link_rate import RailEnds
from vllm_spark.inventory.links import FabricLink, HostFabric, Rail
from vllm_spark.inventory.netplan import Ping

FABRIC_TOPOLOGY = register("fabric-topology", runbook="fabric-plan")

KEYS = {"fabric", "sparks"}

# The two ends of a cable, or two Sparks at a switch, and the subnets that they share.
Ends = tuple[Plug, Plug]
Joined = Mapping[Ends, Sequence[Rail]]


@dataclass(frozen=True, slots=True)
class Topology:
    """The Sparks in the order of their cables, and the links between them as plugs. `links` of a switch is one."""

    fabric: str
    hosts: tuple[str, ...]

    @property
    def links(self) -> list[tuple[Plug, ...]]:
        """The links of cabling.yml between these hosts."""
        return cables.links(self.fabric, self.hosts)


class LinkTest(TypedDict):
    """What is tested by traffic on one host, as the role passes it: `rails` for the rate, `pings` for the MTU.
    `netdevs` are those of the pings, which have a cable."""

    host: str
    peer: str
    rails: list[RailEnds]
    pings: list[Ping]
    netdevs: dict[str, dict[str, bool]]


def parse(value: object, sparks: Sequence[str], limit: Sequence[str], linked: Iterable[str]) -> Topology:
    """Return the topology. `sparks` are the hosts of the group, `limit` those of the run, `linked` those with a
    vllm_fabric. Raises RefusedError with every fault."""
    if not isinstance(value, Mapping) or set(value) != KEYS or not isinstance(value["sparks"], list):
        raise RefusedError([_refusal(f"vllm_topology is {value!r}", "fabric (switch, triangle or ring) and sparks")])
    kind, hosts = value["fabric"], [str(host) for host in value["sparks"]]
    found = Topology(str(kind), tuple(hosts))
    unknown = [host for host in hosts if host not in sparks]
    absent = [host for host in hosts if host in sparks and host not in limit]
    both = [host for host in hosts if host in linked]
    refused = []
    if kind not in cabling.FABRICS or not found.links:
        numbers = ", ".join(f"{name} of {' or '.join(map(str, cabling.numbers(name)))}" for name in cabling.FABRICS)
        refused.append(_refusal(f"vllm_topology has {len(hosts)} Sparks by {kind!r}", numbers))
    if unknown or len(set(hosts)) != len(hosts):
        expected = f"different hosts of the group sparks: {', '.join(sparks)}"
        refused.append(_refusal(f"vllm_topology.sparks is {', '.join(hosts)}", expected))
    if absent:
        fix = f"-l {','.join(hosts)}."
        refused.append(_refusal(f"this run leaves out {', '.join(absent)}", "all Sparks of vllm_topology", fix))
    if both:
        what = f"vllm_topology names {', '.join(both)} with a vllm_fabric"
        refused.append(_refusal(what, "one of them: vllm_fabric writes addresses, vllm_topology accepts those there"))
    if refused:
        raise RefusedError(refused)
    return found


def judge(topology: Topology, facts: Mapping[str, FabricFacts]) -> list[str]:
    """Return a line per link that is accepted, and the notes. Raises RefusedError with every fault; while a cable is in
    the wrong port, with that alone, because its addresses follow from it."""
    fabrics = {host: HostFabric.parse(host, facts[host]) for host in topology.hosts}
    heard = cables.heard(fabrics)
    wrong = list(cables.refusals(topology.fabric, topology.hosts, fabrics, heard))
    if wrong:
        raise RefusedError(wrong)
    joined: dict[Ends, list[Rail]] = {}
    refused = [*_repeated(fabrics)]
    for ends in _pairs(topology, fabrics):
        pair = [fabrics[host].at_port(port) for host, port in ends]
        joined[ends], crowded = links.rails(pair)
        refused += fabric_refusals.refusals(pair, joined[ends], crowded)
    refused += _subnets_of_two_cables(joined) if topology.fabric != cables.SWITCH else ()
    if refused:
        raise RefusedError({str(each): each for each in refused}.values())
    notes = {
        str(note): note
        for ends, rails in joined.items()
        for side, (host, port) in enumerate(ends)
        for note in fabric_notes.notes(fabrics[host].at_port(port), [rail[side] for rail in rails], rails)
    }
    return [
        *(_accepted(ends, rails, by_lldp=any(len(heard.get(end, ())) == 1 for end in ends)) for ends, rails in joined.items()),
        *_slowest(joined),
        *(f"note: {note}" for note in [*notes, *cables.notes(topology.fabric, topology.hosts, fabrics)]),
    ]


def link_tests(host: str, topology: Topology, facts: Mapping[str, FabricFacts]) -> LinkTest:
    """Return the tests of one host over the subnets that `judge` has accepted."""
    rails = link_rate.of_facts(host, {name: facts[name] for name in topology.hosts})
    mtu = {entry["name"]: entry["mtu"] or 0 for entry in facts[host]["netdevs"]}
    sizes = {rail["netdev"]: (mtu[rail["netdev"]] - netplan.HEADERS, netplan.SMALL_PING) for rail in rails}
    return LinkTest(
        host=host,
        peer=" or ".join(dict.fromkeys(rail["host"] for rail in rails)),
        rails=rails,
        pings=[
            Ping(netdev=rail["netdev"], subnet=rail["subnet"], peer=rail["peer"], size=size)
            for rail in rails
            for size in sizes[rail["netdev"]]
        ],
        netdevs={rail["netdev"]: {"carrier": True} for rail in rails},
    )


def _pairs(topology: Topology, fabrics: Mapping[str, HostFabric]) -> Iterator[Ends]:
    """Yield the two ends of each cable. Over a switch they are one Spark and each other one: the one that shares
    subnets with most, so that a Spark with other addresses is named alone."""
    if topology.fabric != cables.SWITCH:
        yield from ((first, second) for first, second in topology.links)
        return
    plugs = cables.plugs_of_switch(topology.hosts, fabrics)
    at = {plug: fabrics[plug[0]].at_port(plug[1]) for plug in plugs}
    first = max(plugs, key=lambda plug: sum(bool(links.rails([at[plug], at[other]])[0]) for other in plugs))
    yield from ((first, plug) for plug in plugs if plug != first)


def _repeated(fabrics: Mapping[str, HostFabric]) -> Iterator[Refusal]:
    """Yield a refusal per address that two of all Sparks have; those at two ends of a link may be named twice."""
    owners: dict[Any, list[str]] = {}
    for host, fabric in fabrics.items():
        for link in fabric.links:
            owners.setdefault(link.address.ip, []).append(f"{host} {link.netdev.name}")
    for address, netdevs in owners.items():
        if len(netdevs) > 1:
            yield FABRIC_SAME_ADDRESS(
                what=f"{address} is on {' and on '.join(netdevs)}",
                expected="a different address on every netdev of the fabric, because it names the node",
                fix="change it in the netplan of all but one, then `sudo netplan apply` there.",
            )


def _subnets_of_two_cables(joined: Joined) -> Iterator[Refusal]:
    """Yield a refusal per subnet that two cables have, as of two fabrics whose addresses were mixed."""
    owners: dict[IPv4Network, list[str]] = {}
    for (first, second), rails in joined.items():
        for rail in rails:
            owners.setdefault(rail[0].subnet, []).append(f"{cables.spoken(first)} – {cables.spoken(second)}")
    for subnet, ends in owners.items():
        if len(ends) > 1:
            yield FABRIC_SHARED_SUBNET(
                what=f"{subnet} is on {len(ends)} cables: {', '.join(ends)}",
                expected="a subnet for each twin of each cable, because NCCL pairs the ports by their subnets",
                fix="netplan as the runbook shows, with the addresses of `vllm-spark plan RECIPE --sparks --fabric`.",
            )


def _accepted(ends: Ends, rails: Sequence[Rail], *, by_lldp: bool) -> str:
    """Return the line of an accepted link, with the GID index of each end; a node has its own."""
    words = (
        f"{rail[0].subnet} {rail[0].netdev.name} {rail[0].address.ip} – {rail[1].netdev.name} {rail[1].address.ip}, MTU "
        f"{rail[0].netdev.mtu}, {_gbps(rail):g} Gb/s, GID {' – '.join(map(_gid, rail))}"
        for rail in rails
    )
    names = " – ".join(map(cables.spoken, ends))
    return f"✓ accepted {names}{' (LLDP)' if by_lldp else ''}: {'; '.join(words)}"


def _gid(link: FabricLink) -> str:
    return "unknown" if link.gid_index is None else str(link.gid_index)


def _gbps(rail: Rail) -> float:
    """Return the nominal rate of a rail in Gbit/s: that of its slower end, 0 if it is not known."""
    return min(link.hca.rate_gbps or 0 for link in rail)


def _slowest(joined: Joined) -> Iterator[str]:
    """Yield the slowest link if the links have different nominal rates."""
    rates = {ends: min(map(_gbps, rails)) for ends, rails in joined.items()}
    slowest = min(rates, key=lambda ends: rates[ends])
    if rates[slowest] < max(rates.values()):
        yield (
            f"slowest link: {' – '.join(map(cables.spoken, slowest))} with {rates[slowest]:g} Gb/s, another has "
            f"{max(rates.values()):g}. The slowest decides for all ranks"
        )


def _refusal(what: str, expected: str, fix: str = "correct vllm_topology in the inventory.") -> Refusal:
    return FABRIC_TOPOLOGY(what=what, expected=expected, fix=fix)
