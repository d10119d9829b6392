"""The cables between Sparks as LLDP hears them, against the links of a topology: what is in the wrong port. Pure.

The twins of a port share its cable, so each of them may hear both twins of the other end. They count as one plug.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.inventory import cabling
from vllm_spark.inventory.cabling import SWITCH
from vllm_spark.inventory.fabric_refusals import FABRIC_NO_CABLE
from vllm_spark.inventory.links import HostFabric, port_of

FABRIC_CABLES = register("fabric-cables", runbook="fabric-cables")

# A Spark and its port. What is at the other end of a cable is a plug too, or the text of a device that is no Spark.
Plug = tuple[str, int]
Heard = Mapping[Plug, Collection[Plug | str]]
Cables = set[frozenset[Plug]]

AGAIN = "Then `ansible-playbook fabric.yml` again."


def links(fabric: str, hosts: Sequence[str]) -> list[tuple[Plug, ...]]:
    """Return the links of cabling.yml between hosts in this order; none if so many cannot have this topology."""
    return [tuple((hosts[end.rank], end.port) for end in link) for link in cabling.links(fabric, len(hosts))]


def spoken(plug: Plug | str) -> str:
    """Return a plug in words."""
    return plug if isinstance(plug, str) else f"{plug[0]} port {plug[1]}"


def heard(fabrics: Mapping[str, HostFabric]) -> dict[Plug, set[Plug | str]]:
    """Return what each port of the Sparks hears. A neighbour is a Spark by the MAC of its netdev, or by that of its
    chassis and the name of its netdev: lldpd sends either (its portidsubtype)."""
    macs = {
        netdev.mac: (host, netdev.name)
        for host, one in fabrics.items()
        for netdev in one.netdevs.values()
        if netdev.mac
    }
    found: dict[Plug, set[Plug | str]] = {}
    for host, fabric in fabrics.items():
        for one in fabric.neighbours or ():
            chassis, port = macs.get(one["chassis"]), one["port"]
            named = port if port_of(port) is not None else one["description"]
            owner = macs.get(port) or (chassis and (chassis[0], named))
            near, far = port_of(one["netdev"]), port_of(owner[1]) if owner else None
            other = (owner[0], far) if owner and far is not None else one["name"] or one["chassis"] or "a device"
            if near is not None and other != (host, near):
                found.setdefault((host, near), set()).add(other)
    return found


def plugs_of_switch(hosts: Sequence[str], fabrics: Mapping[str, HostFabric]) -> list[Plug]:
    """Return the port by which each Spark is joined to a switch: the one of cabling.yml if it has a signal."""
    [(*_, (_, usual))] = links(SWITCH, hosts)
    plugs = ((host, [port for port in (usual, 1 - usual) if _signal(fabrics, (host, port))]) for host in hosts)
    return [(host, (ports or [usual])[0]) for host, ports in plugs]


def refusals(fabric: str, hosts: Sequence[str], fabrics: Mapping[str, HostFabric], found: Heard) -> Iterator[Refusal]:
    """Yield what must be plugged otherwise, and each port of a link without a signal."""
    wanted = links(fabric, hosts) if fabric != SWITCH else [tuple(plugs_of_switch(hosts, fabrics))]
    # A port that hears several devices is at a switch that passes LLDP on, and proves no cable.
    alone = {plug: next(iter(others)) for plug, others in found.items() if len(others) == 1}
    seen = {frozenset((plug, other)) for plug, other in alone.items() if isinstance(other, tuple)}
    if fabric == SWITCH:
        # If all of them speak, two that hear each other alone share a cable, and no switch that passes LLDP on.
        used = set(wanted[0]) if all(one.neighbours is not None for one in fabrics.values()) else set()
        for one in (cable for cable in seen if cable <= used and all(alone.get(plug) in cable for plug in cable)):
            ends = " and ".join(map(spoken, sorted(one)))
            yield _wrong(f"a cable joins {ends}", "one from each Spark to the switch", f"plug {ends} into it.")
    else:
        yield from _misplaced(fabric, hosts, seen, {frozenset(link) for link in wanted})
        for near, far in (ends for link in wanted for ends in (link, link[::-1])):
            if isinstance(other := alone.get(near), str):
                what = f"{spoken(near)} leads to {other}, which is none of the Sparks"
                yield _wrong(what, f"a cable to {spoken(far)}", f"plug {spoken(near)} to {spoken(far)}.")
    for link in wanted:
        if dark := [plug for plug in link if not _signal(fabrics, plug)]:
            names = " and ".join(map(spoken, dark))
            yield FABRIC_NO_CABLE(
                what=f"no signal at {names}: a cable is missing, loose, or in another port",
                expected=f"a link of {', '.join(map(spoken, link))}",
                fix=f"plug the cable of {names} in until it clicks, on both ends. {AGAIN}",
            )


def notes(fabric: str, hosts: Sequence[str], fabrics: Mapping[str, HostFabric]) -> Iterator[str]:
    """Yield what cannot be said without LLDP, and a Spark at a switch by another port than the others."""
    if deaf := [host for host in hosts if fabrics[host].neighbours is None]:
        yield (
            f"no lldpd runs on {', '.join(deaf)}, so that pings alone judge the cables. With -e install_lldpd=true "
            "this verb installs it, and names a cable in the wrong port"
        )
    plugs = plugs_of_switch(hosts, fabrics) if fabric == SWITCH else []
    ports = [port for _, port in plugs]
    for host, port in plugs:
        if port != (usual := max(set(ports), key=ports.count)):
            what = f"{host} is at the switch by port {port}, the others by port {usual}"
            expected = "the same port on all, so that their netdevs and HCAs have the same names; it works without"
            yield str(_wrong(what, expected, f"on {host}, move the cable from port {port} to port {usual}."))


def _misplaced(fabric: str, hosts: Sequence[str], seen: Cables, wanted: Cables) -> Iterator[Refusal]:
    """Yield one refusal for cables that are not those of the topology, with the least work that mends it."""
    wrong = sorted(sorted(cable) for cable in seen - wanted)
    if not wrong:
        return
    what = "; ".join(f"a cable joins {' and '.join(map(spoken, cable))}" for cable in wrong)
    instead = sorted(sorted(cable) for cable in wanted - seen if any(cable & set(other) for other in wrong))
    expected = " and ".join(" to ".join(map(spoken, cable)) for cable in instead)
    orders = (order for order in itertools.permutations(hosts) if seen == set(map(frozenset, links(fabric, order))))
    some = (each for number in range(1, len(hosts) + 1) for each in itertools.combinations(hosts, number))
    if order := next(orders, None):
        fix = f"vllm_topology.sparks: [{', '.join(order)}], which is the order of the cables."
    elif swapped := next((each for each in some if _swapped(seen, each) <= wanted), None):
        fix = f"on {', on '.join(swapped)}, swap the two cables."
    else:
        fix = f"plug {expected}."
    yield _wrong(what, f"{expected}, as a {fabric} of {', '.join(hosts)}", fix)


def _swapped(seen: Cables, hosts: Collection[str]) -> Cables:
    """Return the cables after both of each of these hosts have changed places."""
    return {frozenset((host, 1 - port if host in hosts else port) for host, port in cable) for cable in seen}


def _wrong(what: str, expected: str, fix: str) -> Refusal:
    return FABRIC_CABLES(what=what, expected=expected, fix=f"{fix} {AGAIN}")


def _signal(fabrics: Mapping[str, HostFabric], plug: Plug) -> bool:
    return any(netdev.carrier for netdev in fabrics[plug[0]].netdevs.values() if port_of(netdev.name) == plug[1])
