"""The RDMA devices and links of one host, parsed from its fabric facts, and the links that several hosts share.

A Spark has two QSFP sockets. Behind each are two HCAs, its PCIe twins, on PCI domains 0000 and 0002 with the same bus,
device and function: enp1s0f1np1/rocep1s0f1 and enP2p1s0f1np1/roceP2p1s0f1. Each twin has PCIe Gen5 x4, about 100 Gb/s,
so a cable is used in full only when both twins have an address, each in its own subnet. The cable may be in different
sockets of the two hosts: subnets show which netdevs are joined, names do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv4Network

from vllm_spark.core.types import FabricFacts, HcaFacts, NetdevFacts


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of an HCA's GID table. `type` is the kernel's name."""

    index: int
    type: str
    address: str


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network device of the kernel. `master` is the bond or bridge that it is part of, or an empty text."""

    name: str
    addresses: tuple[IPv4Interface, ...]
    mtu: int | None
    carrier: bool
    wireless: bool
    master: str = ""
    mac: str = ""


@dataclass(frozen=True, slots=True)
class Hca:
    """An RDMA device. `gids_from` is the source of its GIDs: sysfs, show_gids, or empty if they are unknown."""

    name: str
    netdev: str | None
    state: str
    rate: str
    pci: str | None
    pci_width: int | None
    pci_max_width: int | None
    pci_speed: str
    pci_max_speed: str
    gids: tuple[Gid, ...]
    gids_from: str

    @property
    def port(self) -> str:
        """The same text for the twins of one socket: the PCI address, or else the name, without its domain."""
        return self.pci.partition(":")[2] if self.pci else re.sub(r"P\d+(?=p\d)", "", self.name)

    @property
    def order(self) -> tuple[str, str]:
        """The key by which NCCL before 2.30 orders the HCAs of a host."""
        return self.pci or "", self.name

    @property
    def rate_gbps(self) -> float | None:
        """Return the rate in Gb/s, e.g. 200.0 from "200 Gb/sec (4X HDR)"."""
        number = re.match(r"[\d.]+", self.rate)
        return float(number[0]) if number else None


@dataclass(frozen=True, slots=True)
class FabricLink:
    """An HCA and its netdev, both up, by one IPv4 address."""

    hca: Hca
    netdev: Netdev
    address: IPv4Interface

    @property
    def subnet(self) -> IPv4Network:
        return self.address.network

    @property
    def gid_index(self) -> int | None:
        """The index of the RoCE v2 GID of the link's own address."""
        ip = str(self.address.ip)
        return next((gid.index for gid in self.hca.gids if gid.type == "RoCE v2" and gid.address == ip), None)


# Links in one subnet, one of each host, in the order of the hosts.
Rail = tuple[FabricLink, ...]


@dataclass(frozen=True, slots=True)
class HostFabric:
    """The fabric facts of one host, parsed."""

    host: str
    netdevs: Mapping[str, Netdev]
    hcas: tuple[Hca, ...]
    devices: tuple[str, ...]
    ib_core: bool
    default_route: str | None
    hotplug: bool
    error: str
    neighbours: tuple[Mapping[str, str], ...] | None = None

    @classmethod
    def parse(cls, host: str, facts: FabricFacts) -> HostFabric:
        """Return the fabric of one host from what plugins/module_utils/spark_fabric.py returns."""
        netdevs = [_netdev(entry) for entry in facts["netdevs"]]
        return cls(
            host=host,
            netdevs={netdev.name: netdev for netdev in netdevs},
            hcas=tuple(_hca(entry) for entry in facts["hcas"]),
            devices=tuple(facts["devices"]),
            ib_core=facts["ib_core"],
            default_route=facts["default_route"],
            hotplug=facts.get("hotplug", False),
            error=facts.get("error", ""),
            neighbours=None if (heard := facts.get("neighbours")) is None else tuple(heard),
        )

    def at_port(self, port: int) -> HostFabric:
        """Return this host with the HCAs of one of its ports alone."""
        return replace(self, hcas=tuple(hca for hca in self.hcas if port_of(hca.netdev or "") == port))

    @property
    def powered_down(self) -> bool:
        """Return True if DGX OS has taken the ConnectX-7 off the bus, as it does without a cable. The module ib_core
        is absent then too, because mlx5 loads it."""
        return self.hotplug and not self.hcas

    @property
    def up(self) -> tuple[tuple[Hca, Netdev], ...]:
        """The HCAs that have a cable. An HCA on a WiFi card (soft RoCE) is left out: it drops frames under load."""
        pairs = [(hca, self.netdevs.get(hca.netdev or "")) for hca in self.hcas if hca.state == "ACTIVE"]
        return tuple((hca, netdev) for hca, netdev in pairs if netdev and netdev.carrier and not netdev.wireless)

    @property
    def links(self) -> list[FabricLink]:
        """Return a link per HCA with a cable and IPv4 address of its netdev, lowest subnet first."""
        links = [FabricLink(hca, netdev, address) for hca, netdev in self.up for address in netdev.addresses]
        return sorted(links, key=lambda link: (link.subnet, link.hca.order))

    def describe(self, hca: Hca) -> str:
        """Return an HCA with its netdev, state and addresses, for a message."""
        netdev = self.netdevs.get(hca.netdev or "")
        addresses = ", ".join(map(str, netdev.addresses)) if netdev else ""
        return f"{hca.name}/{hca.netdev or 'no netdev'} {hca.state} {addresses or 'without an address'}"


def rails(fabrics: Sequence[HostFabric]) -> tuple[list[Rail], list[IPv4Network]]:
    """Return (a rail per subnet that all hosts have, lowest first; the subnets that a host has on two HCAs)."""
    by_subnet = [_links_by_subnet(fabric) for fabric in fabrics]
    shared = sorted(set.intersection(*(set(links) for links in by_subnet)))
    crowded = [subnet for subnet in shared if any(hca_count(links[subnet]) > 1 for links in by_subnet)]
    joined: list[Rail] = []
    for subnet in shared:
        rail = tuple(links[subnet][0] for links in by_subnet)
        # A second address of a netdev is not a second rail.
        used = any(own.hca == other.hca for before in joined for own, other in zip(rail, before, strict=True))
        if subnet not in crowded and not used:
            joined.append(rail)
    return joined, crowded


def port_of(netdev: str) -> int | None:
    """Return the QSFP port of a Spark, 0 or 1, by the name that DGX OS gives to both of its twins (enp1s0f1np1 and
    enP2p1s0f1np1 are port 1); None for another netdev."""
    found = re.fullmatch(r"en\w+f([01])(?:np\d+)?", netdev)
    return int(found[1]) if found else None


def hca_count(links: Sequence[FabricLink]) -> int:
    """Return the number of different HCAs."""
    return len({link.hca.name for link in links})


def _links_by_subnet(fabric: HostFabric) -> dict[IPv4Network, list[FabricLink]]:
    grouped: dict[IPv4Network, list[FabricLink]] = {}
    for link in fabric.links:
        grouped.setdefault(link.subnet, []).append(link)
    return grouped


def _netdev(entry: NetdevFacts) -> Netdev:
    addresses = [IPv4Interface(f"{address['address']}/{address['prefix']}") for address in entry["addresses"]]
    return Netdev(
        name=entry["name"],
        addresses=tuple(addresses),
        mtu=entry["mtu"],
        carrier=entry["carrier"],
        wireless=entry["wireless"],
        master=entry.get("master", ""),
        mac=entry.get("mac", ""),
    )


def _hca(entry: HcaFacts) -> Hca:
    return Hca(
        name=entry["name"],
        netdev=entry["netdev"],
        state=entry["state"],
        rate=entry["rate"],
        pci=entry["pci"],
        pci_width=entry["pci_width"],
        pci_max_width=entry["pci_max_width"],
        pci_speed=entry["pci_speed"],
        pci_max_speed=entry["pci_max_speed"],
        gids=tuple(Gid(**gid) for gid in entry["gids"]),
        gids_from=entry["gids_from"],
    )
