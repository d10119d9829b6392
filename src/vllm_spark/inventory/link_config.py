"""`vllm_fabric` of the inventory: the addresses of the direct link of two hosts, parsed and checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Interface, IPv4Network, NetmaskValueError
from typing import Any

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.inventory.links import HostFabric

FABRIC_PLAN = register("fabric-plan", runbook="fabric-plan")

KEYS = {"peer", "addresses", "mtu"}
TWINS = 2
DEFAULT_MTU = 9000
# The upper end is the maximum of a ConnectX-7. Below 1280 IPv6 does not work.
MTU_RANGE = range(1280, 9979)
NETDEV = re.compile(r"[A-Za-z0-9_.-]{1,15}")


@dataclass(frozen=True, slots=True)
class LinkPort:
    """One netdev of a socket and its address."""

    netdev: str
    address: IPv4Interface

    @property
    def subnet(self) -> IPv4Network:
        return self.address.network


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """`vllm_fabric` of one host."""

    host: str
    peer: str
    mtu: int
    twins: tuple[LinkPort, ...]


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Both ends of a link. Their peers, MTUs and subnets match."""

    own: LinkConfig
    other: LinkConfig

    @property
    def rails(self) -> list[tuple[LinkPort, LinkPort]]:
        """Return (own end, end of the peer) per subnet."""
        ends = {twin.subnet: twin for twin in self.other.twins}
        return [(twin, ends[twin.subnet]) for twin in self.own.twins]


def plan_refusal(what: str, expected: str, fix: str = "correct vllm_fabric in the inventory of both hosts.") -> Refusal:
    """Return a refusal of the inventory's link definition."""
    return FABRIC_PLAN(what=what, expected=expected, fix=fix)


def parse(host: str, value: object, sparks: Sequence[str]) -> tuple[LinkConfig | None, list[Refusal]]:
    """Return (the config, or None if its form is wrong; every fault) of `vllm_fabric` of one host."""
    if not isinstance(value, Mapping) or not set(value) <= KEYS or not {"peer", "addresses"} <= set(value):
        content = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)
        fault = plan_refusal(f"{host} has vllm_fabric with {content}", "peer, addresses and, if not 9000, mtu")
        return None, [fault]
    peer, mtu, addresses = value["peer"], value.get("mtu", DEFAULT_MTU), value["addresses"]
    twins, address_faults = _ports(host, addresses)
    refusals = [*_peer_faults(host, peer, sparks), *address_faults, *_mtu_faults(host, mtu)]
    if refusals:
        return None, refusals
    first, second = twins
    if first.subnet.overlaps(second.subnet):
        refusals.append(
            plan_refusal(
                f"{host} has {first.netdev} {first.address} and {second.netdev} {second.address} in one subnet",
                "a subnet for each of the two, because Linux sends a subnet's traffic through one netdev",
                "192.168.177.x/24 for one and 192.168.178.x/24 for the other.",
            )
        )
    return LinkConfig(host, peer, mtu, tuple(twins)), refusals


def proposed(first: HostFabric, second: HostFabric) -> dict[str, dict[str, Any]]:
    """Return `vllm_fabric` of two Sparks by host if their cable has no address yet, else nothing.

    The subnets are two that neither host uses. Each has the twins of one PCI domain.
    """
    hosts = (first, second)
    twins = [[netdev for _, netdev in sorted(host.up, key=lambda pair: pair[0].order)] for host in hosts]
    if any(len(pair) != TWINS or any(netdev.addresses for netdev in pair) for pair in twins):
        return {}
    used = [each.network for host in hosts for netdev in host.netdevs.values() for each in netdev.addresses]
    free = list(free_subnets(used))
    return {
        host.host: {
            "peer": hosts[1 - side].host,
            "addresses": numbered([netdev.name for netdev in twins[side]], free, side),
        }
        for side, host in enumerate(hosts)
    }


def free_subnets(used: Sequence[IPv4Network]) -> Iterator[IPv4Network]:
    """Yield the subnets for links that overlap none of those in use, lowest first."""
    subnets = (IPv4Network(f"192.168.{number}.0/24") for number in range(177, 255))
    return (subnet for subnet in subnets if not any(map(subnet.overlaps, used)))


def numbered(netdevs: Sequence[str], subnets: Sequence[IPv4Network], side: int) -> dict[str, str]:
    """Return netdev -> address of the twins at one end of a link, which is its end number `side`."""
    return {netdev: f"{subnet[11 + side]}/24" for netdev, subnet in zip(netdevs, subnets, strict=False)}


def mismatches(own: LinkConfig, other: LinkConfig) -> Iterator[Refusal]:
    """Yield what differs between the two ends and must not, and what is the same and must differ."""
    if other.peer != own.host:
        yield plan_refusal(
            f"{own.host} has the peer {own.peer}, and {other.host} has {other.peer}", "each other as the peer"
        )
    if own.mtu != other.mtu:
        yield plan_refusal(
            f"{own.host} has mtu {own.mtu} and {other.host} {other.mtu}",
            "the same on both, because the larger packets would be lost",
        )
    subnets = [", ".join(str(subnet) for subnet in sorted(twin.subnet for twin in end.twins)) for end in (own, other)]
    if subnets[0] != subnets[1]:
        yield plan_refusal(
            f"{own.host} has the subnets {subnets[0]} and {other.host} {subnets[1]}", "the same two on both"
        )
    same = {str(twin.address.ip) for twin in own.twins} & {str(twin.address.ip) for twin in other.twins}
    if same:
        yield plan_refusal(
            f"{own.host} and {other.host} both have {', '.join(sorted(same))}", "a different address for every netdev"
        )


def _peer_faults(host: str, peer: object, sparks: Sequence[str]) -> Iterator[Refusal]:
    if peer == host or peer not in sparks:
        yield plan_refusal(f"{host} has the peer {peer}", f"another of {', '.join(sparks)}")


def _mtu_faults(host: str, mtu: object) -> Iterator[Refusal]:
    if not isinstance(mtu, int) or isinstance(mtu, bool) or mtu not in MTU_RANGE:
        yield plan_refusal(
            f"{host} has mtu {mtu!r}", f"a number from {MTU_RANGE.start} to {MTU_RANGE.stop - 1}", "9000, or 1500."
        )


def _ports(host: str, addresses: object) -> tuple[list[LinkPort], list[Refusal]]:
    """Return (the ports with a usable address, every fault)."""
    if not isinstance(addresses, Mapping) or len(addresses) != TWINS:
        netdevs = ", ".join(map(str, addresses)) if isinstance(addresses, Mapping) else repr(addresses)
        fault = f"{host} has addresses for {netdevs or 'nothing'}"
        return [], [plan_refusal(fault, "the two netdevs of one socket, its PCIe twins")]
    bad = [str(name) for name in addresses if not NETDEV.fullmatch(str(name))]
    if bad:
        return [], [plan_refusal(f"{host} names {', '.join(bad)}", "names of netdevs, as ip -br link shows them")]
    ports, refusals = [], []
    for netdev, text in addresses.items():
        address = _address(text)
        if isinstance(address, str):
            refusals.append(plan_refusal(f"{host} {netdev}: {text} {address}", "an address as 192.168.177.11/24"))
        else:
            ports.append(LinkPort(netdev, address))
    return ports, refusals


def _address(text: object) -> IPv4Interface | str:
    """Return the address of a host in a subnet, or what is wrong with it."""
    try:
        address = IPv4Interface(str(text))
    except (AddressValueError, NetmaskValueError, ValueError):
        return "is not an IPv4 address"
    if "/" not in str(text):
        return "has no prefix"
    ip, subnet = address.ip, address.network
    if ip.is_loopback or ip.is_multicast or ip.is_link_local or ip.is_unspecified or ip.is_reserved:
        return "cannot be the address of a host"
    if subnet.num_addresses > TWINS and ip in (subnet.network_address, subnet.broadcast_address):
        return f"is the {'network' if ip == subnet.network_address else 'broadcast'} address of {subnet}"
    if subnet.num_addresses < TWINS:
        return "has no room for the peer"
    return address
