"""`vllm_topology` of the inventory: Sparks whose links something else has configured, such as NVIDIA Sync's assistant.

`fabric` reads their addresses, judges them by the links of cabling.yml, says what it accepts and writes nothing. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from vllm_spark.core.fault import Fault
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document, FabricFacts
from vllm_spark.inventory import cables, cabling, fabric_notes, fabric_refusals, link_rate, links, map_variable, netplan
from vllm_spark.inventory.cables import Plug
from vllm_spark.inventory.fabric_refusals import FABRIC_SHARED_SUBNET
from vllm_spark.inventory.links import HostFabric, Rail
from vllm_spark.inventory.netplan import Ping

FABRIC_TOPOLOGY = register("fabric-topology", runbook="fabric-plan")
SCHEMA = Path(__file__).with_name("topology.schema.json")

# The two ends of a cable, or two Sparks at a switch, and the subnets that they share.
Ends = tuple[Plug, Plug]
Joined = Mapping[Ends, Sequence[Rail]]


def parse(value: object, sparks: Sequence[str], limit: Sequence[str], linked: Collection[str]) -> Document:
    """Return vllm_topology: `fabric`, and `sparks` in the order of their cables. `sparks` are the hosts of the group,
    `limit` those of the run, `linked` those with a vllm_fabric. Raises RefusedError with every fault."""
    rules = partial(_faults, sparks, limit, linked)
    return map_variable.checked(value, "vllm_topology", SCHEMA, rules, FABRIC_TOPOLOGY)


def _faults(
    sparks: Sequence[str], limit: Sequence[str], linked: Collection[str], document: Document
) -> Iterator[Fault]:
    fabric, hosts = document["fabric"], document["sparks"]
    if not cabling.links(fabric, len(hosts)):
        yield Fault(f"vllm_topology: a {fabric} of {len(hosts)} Sparks", f"one of {cabling.shapes()}")
    if unknown := [host for host in hosts if host not in sparks]:
        yield Fault(f"vllm_topology.sparks: {', '.join(unknown)}", f"hosts of the group sparks: {', '.join(sparks)}")
    elif absent := [host for host in hosts if host not in limit]:
        yield Fault(f"vllm_topology: this run leaves out {', '.join(absent)}", f"all of them: -l {','.join(hosts)}")
    if both := [host for host in hosts if host in linked]:
        expected = "one of the two: vllm_fabric writes addresses, vllm_topology accepts those that are there"
        yield Fault(f"vllm_topology.sparks: {', '.join(both)} with a vllm_fabric", expected)


def judge(topology: Document, facts: Mapping[str, FabricFacts]) -> list[str]:
    """Return a line per link that is accepted, and the notes. Raises RefusedError with every fault; while a cable is in
    the wrong port, with that alone, because its addresses follow from it."""
    fabric, hosts = topology["fabric"], topology["sparks"]
    fabrics = {host: HostFabric.parse(host, facts[host]) for host in hosts}
    heard = cables.heard(fabrics)
    if wrong := list(cables.refusals(fabric, hosts, fabrics, heard)):
        raise RefusedError(wrong)
    joined: dict[Ends, list[Rail]] = {}
    refused: list[Refusal] = []
    for ends in _pairs(fabric, hosts, fabrics):
        pair = [fabrics[host].at_port(port) for host, port in ends]
        joined[ends], crowded = links.rails(pair)
        refused += fabric_refusals.refusals(pair, joined[ends], crowded)
    for two in itertools.combinations(fabrics.values(), 2):
        refused += fabric_refusals.same_address(two)
    refused += _subnets_of_two_cables(joined) if fabric != cabling.SWITCH else ()
    if refused:
        raise RefusedError({str(each): each for each in refused}.values())
    notes = {
        f"note: {note}"
        for ends, rails in joined.items()
        for side, (host, port) in enumerate(ends)
        for note in fabric_notes.notes(fabrics[host].at_port(port), [rail[side] for rail in rails], rails)
    }
    accepted = (_accepted(ends, rails, heard) for ends, rails in joined.items())
    return [*accepted, *sorted(notes), *(f"note: {note}" for note in cables.notes(fabric, hosts, fabrics))]


def link_tests(host: str, topology: Document, facts: Mapping[str, FabricFacts]) -> dict[str, Any]:
    """Return what one host tests by traffic over the subnets that `judge` has accepted, as the role passes it: `rails`
    for the rate, `pings` for the MTU, and what is said of a ping: `host`, `peer`, and `netdevs`, which have a cable."""
    rails = link_rate.of_facts(host, {name: facts[name] for name in topology["sparks"]})
    mtu = {entry["name"]: entry["mtu"] or 0 for entry in facts[host]["netdevs"]}
    sized = ((rail, size) for rail in rails for size in (mtu[rail["netdev"]] - netplan.HEADERS, netplan.SMALL_PING))
    return {
        "host": host,
        "peer": " or ".join(dict.fromkeys(rail["host"] for rail in rails)),
        "rails": rails,
        "pings": [Ping(netdev=one["netdev"], subnet=one["subnet"], peer=one["peer"], size=size) for one, size in sized],
        "netdevs": {rail["netdev"]: {"carrier": True} for rail in rails},
    }


def _pairs(fabric: str, hosts: Sequence[str], fabrics: Mapping[str, HostFabric]) -> Iterator[Ends]:
    """Yield the two ends of each cable. Over a switch they are one Spark and each other one: the one that shares
    subnets with most, so that a Spark with other addresses is named alone."""
    if fabric != cabling.SWITCH:
        yield from ((first, second) for first, second in cables.links(fabric, hosts))
        return
    at = {plug: fabrics[plug[0]].at_port(plug[1]) for plug in cables.plugs_of_switch(hosts, fabrics)}
    first = max(at, key=lambda plug: sum(bool(links.rails([at[plug], other])[0]) for other in at.values()))
    yield from ((first, plug) for plug in at if plug != first)


def _subnets_of_two_cables(joined: Joined) -> Iterator[Refusal]:
    """Yield a refusal per subnet that two cables have, as of two fabrics whose addresses were mixed."""
    owners: dict[IPv4Network, list[str]] = {}
    for ends, rails in joined.items():
        for rail in rails:
            owners.setdefault(rail[0].subnet, []).append(_spoken(ends))
    for subnet, named in owners.items():
        if len(named) > 1:
            yield FABRIC_SHARED_SUBNET(
                what=f"{subnet} is on {len(named)} cables: {', '.join(named)}",
                expected="a subnet for each twin of each cable, because NCCL pairs the ports by their subnets",
                fix="set others as the runbook shows; `vllm-spark plan RECIPE --sparks 4 --fabric ring` prints some.",
            )


def _accepted(ends: Ends, rails: Sequence[Rail], heard: cables.Heard) -> str:
    """Return the line of an accepted link, with the rate and the GID index of each end; a node has its own."""
    by_lldp = " (LLDP)" if any(len(heard.get(end, ())) == 1 for end in ends) else ""
    words = []
    for rail in rails:
        names = " ↔ ".join(f"{link.netdev.name} {link.address.ip}" for link in rail)
        rates = " ↔ ".join(f"{_known(link.hca.rate_gbps)} Gb/s GID {_known(link.gid_index)}" for link in rail)
        words.append(f"{rail[0].subnet} {names}, MTU {rail[0].netdev.mtu}, {rates}")
    return f"✓ accepted {_spoken(ends)}{by_lldp}: {'; '.join(words)}"


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _spoken(ends: Ends) -> str:
    return " ↔ ".join(map(cables.spoken, ends))
