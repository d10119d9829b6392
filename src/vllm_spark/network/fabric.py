"""The fabric of two Sparks: which netdevs and HCAs carry the pair, from each box's own facts, or why none can.

Facts are what plugins/module_utils/spark_fabric.py returns. Pure: no I/O, no Ansible.

A Spark has two QSFP sockets. Behind each sit two HCAs, its PCIe twins, on PCI domains 0000 and 0002 with the same
bus, device and function: enp1s0f1np1/rocep1s0f1 and enP2p1s0f1np1/roceP2p1s0f1. Each twin has PCIe Gen5 x4, about
100 Gb/s, so a cable is used in full only when both twins have an address, each in its own subnet. The two boxes may be
cabled on different sockets: subnets say what is joined, names do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv4Network

from vllm_spark.core import engine_version as core_engine_version
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import FabricFacts as Facts

FABRIC_NAMES_DIFFER = register("fabric-names-differ", runbook="fabric-names-differ")
FABRIC_IB_CORE = register("fabric-ib-core", runbook="fabric-no-devices")
FABRIC_NO_DEVICES = register("fabric-no-devices", runbook="fabric-no-devices")
FABRIC_NO_ADDRESS = register("fabric-no-address", runbook="fabric-no-address")
FABRIC_TWINS_ONE_SUBNET = register("fabric-twins-one-subnet", runbook="fabric-twins-one-subnet")
FABRIC_MTU = register("fabric-mtu", runbook="fabric-mtu")
FABRIC_SAME_ADDRESS = register("fabric-same-address", runbook="fabric-same-address")
FABRIC_NO_GID = register("fabric-no-gid", runbook="fabric-no-gid")
FABRIC_NONE = register("fabric-none", runbook="fabric-none")
FABRIC_LANE_WIDTH = register("fabric-lane-width", runbook="fabric-lane-width")
FABRIC_HALF_BANDWIDTH = register("fabric-half-bandwidth", runbook="fabric-half-bandwidth")
FABRIC_CROSSED = register("fabric-crossed", runbook="fabric-crossed")
FABRIC_WIFI = register("fabric-wifi", runbook="fabric-wifi")


# What a Spark's socket and cable give (InfiniBand's name of the rate, which sysfs uses for RoCE too).
FULL_RATE_GBPS = 200

# From this release on the default Ray executor leaves a worker the NCCL_* of its own node (setdefault). The one before
# writes the head's over them, as it copies every variable that begins so (vllm/ray/ray_env.py).
RAY_KEEPS_NODE_ENV_SINCE = (0, 23)
RAY_COPIED_PREFIXES = ("NCCL_", "UCX_")
# 0.20 has the new executor too, behind this switch, which later takes the old one.
RAY_V2_SWITCH = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
RAY_V2_SWITCH_SINCE = (0, 20)


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of an HCA's GID table. `type` in the kernel's words."""

    index: int
    type: str
    address: str


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network device of the kernel."""

    name: str
    addresses: tuple[IPv4Interface, ...]
    mtu: int | None
    carrier: bool
    wireless: bool


@dataclass(frozen=True, slots=True)
class Hca:
    """An RDMA device. `gids_from` is who told its GIDs: sysfs, show_gids, or nobody, and then none is known."""

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
        """The same for the twins of one socket: the PCI address, or else the name, without its domain."""
        return self.pci.partition(":")[2] if self.pci else re.sub(r"P\d+(?=p\d)", "", self.name)

    @property
    def rate_gbps(self) -> float | None:
        """200.0 from "200 Gb/sec (4X HDR)"."""
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
        """The RoCE v2 GID of the link's own address."""
        ip = str(self.address.ip)
        return next((gid.index for gid in self.hca.gids if gid.type == "RoCE v2" and gid.address == ip), None)


@dataclass(frozen=True, slots=True)
class HostFabric:
    """The fabric facts of one Spark, parsed."""

    host: str
    netdevs: Mapping[str, Netdev]
    hcas: tuple[Hca, ...]
    devices: tuple[str, ...]
    ib_core: bool
    default_route: str | None
    error: str

    @classmethod
    def parse(cls, host: str, facts: Facts) -> HostFabric:
        netdevs = [_netdev(entry) for entry in facts["netdevs"]]
        return cls(
            host=host,
            netdevs={netdev.name: netdev for netdev in netdevs},
            hcas=tuple(_hca(entry) for entry in facts["hcas"]),
            devices=tuple(facts["devices"]),
            ib_core=facts["ib_core"],
            default_route=facts["default_route"],
            error=facts.get("error", ""),
        )

    @property
    def up(self) -> tuple[tuple[Hca, Netdev], ...]:
        """The HCAs that have a cable. An HCA made of a WiFi card (soft RoCE) is none: it drops frames under load."""
        pairs = [(hca, self.netdevs.get(hca.netdev or "")) for hca in self.hcas if hca.state == "ACTIVE"]
        return tuple((hca, netdev) for hca, netdev in pairs if netdev and netdev.carrier and not netdev.wireless)


@dataclass(frozen=True, slots=True)
class FabricChoice:
    """What one host of a pair uses. netdevs, hcas and subnets are in one order, the same on both hosts; the first is
    the primary. `gid_index` is the primary's, for people and gates to look at: it is not stable enough to be set."""

    host: str
    address: str
    netdev: str
    netdevs: tuple[str, ...]
    hcas: tuple[str, ...]
    gid_index: int | None
    mtu: int | None
    subnets: tuple[str, ...]
    notes: tuple[str, ...] = ()


# Two links, one of each host, in one subnet.
Rail = tuple[FabricLink, FabricLink]


def links(facts: Facts, host: str = "") -> list[FabricLink]:
    """The candidates of one box, lowest subnet first: every HCA with its netdev that is up and has an IPv4 address."""
    return _links(HostFabric.parse(host, facts))


def choose(facts_by_host: Mapping[str, Facts]) -> dict[str, FabricChoice]:
    """What each of two hosts uses to reach the other. Raises RefusedError with every fault found."""
    boxes = [HostFabric.parse(host, facts) for host, facts in facts_by_host.items()]
    if len(boxes) != 2:  # noqa: PLR2004  a pair is two
        raise ValueError(f"a fabric joins two hosts, not {len(boxes)}: {', '.join(facts_by_host)}")
    rails, crowded = _rails(boxes)
    refusals = [
        *_unready(boxes),
        *_crowded(boxes, crowded),
        *_mtu(boxes, rails),
        *_same_address(boxes),
        *_no_gid(boxes, rails),
    ]
    # A box that cannot have a fabric has said so; "no common subnet" on top of it would hide the cause.
    if not rails and not crowded and not any(refusal.id != "fabric-no-devices" for refusal in refusals):
        refusals.append(_none(boxes))
    if refusals:
        raise RefusedError(refusals)
    return {box.host: _choice(box, [rail[side] for rail in rails], rails) for side, box in enumerate(boxes)}


def environment(
    choice: FabricChoice,
    executor: str,
    engine_version: str,
    peer: FabricChoice,
    engine_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The container's variables of one rank that name its fabric. Raises RefusedError where this engine would not let
    the rank have its own. `engine_env` is the recipe's env, which can switch the Ray executor."""
    refusals = list(env_refusals(choice, executor, engine_version, peer, engine_env))
    if refusals:
        raise RefusedError(refusals)
    return _environment(choice, executor)


def env_refusals(
    choice: FabricChoice,
    executor: str,
    engine_version: str,
    peer: FabricChoice,
    engine_env: Mapping[str, str] | None = None,
) -> Iterator[Refusal]:
    """Why this engine cannot give each of the two ranks the variables of its own host."""
    if executor != "ray" or _keeps_node_env(engine_version, engine_env or {}):
        return
    mine, other = _environment(choice, executor), _environment(peer, executor)
    differing = [name for name in mine if name.startswith(RAY_COPIED_PREFIXES) and mine[name] != other.get(name)]
    if differing:
        seen = "; ".join(f"{name} is {mine[name]} on {choice.host}, {other[name]} on {peer.host}" for name in differing)
        yield FABRIC_NAMES_DIFFER(
            what=f"the Ray executor of vLLM {engine_version} writes the head's NCCL_* and UCX_* over the worker's, and "
            f"{seen}",
            expected="the same names on both",
            fix="set overrides.topology.executor: mp, or plug the cable into the same socket of both, or set "
            f'overrides.env.{RAY_V2_SWITCH}: "1" (0.20 and later).',
        )


def _environment(choice: FabricChoice, executor: str) -> dict[str, str]:
    """Every value is the rank's own: no executor copies GLOO_*, TP_*, RAY_* or VLLM_HOST_IP to the other node."""
    common = {
        "VLLM_HOST_IP": choice.address,
        # Bootstrap and small tensors: one netdev, because the address that a rank tells its peer is on this one.
        "GLOO_SOCKET_IFNAME": choice.netdev,
        "TP_SOCKET_IFNAME": choice.netdev,
        "UCX_NET_DEVICES": choice.netdev,
        # NCCL takes names as prefixes unless they follow "=": eth1 would be eth10 too.
        "NCCL_SOCKET_IFNAME": f"={choice.netdev}",
        "NCCL_IB_HCA": f"={','.join(choice.hcas)}",
        "NCCL_IB_DISABLE": "0",
        # Instead of NCCL_IB_GID_INDEX: a GID's index changes when a link goes down and up, and differs between the
        # twins, and a pinned one then hangs after the weights are loaded (ibv_modify_qp failed).
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        # GB10 has no GPUDirect RDMA, so neither of its two ways is tried. NVLS needs an NVLink switch, and looking for
        # one has hung starts (NVIDIA/nccl#2167). cuMem is off as in the pair of vllm#41725.
        "NCCL_NET_GDR_LEVEL": "0",
        "NCCL_DMABUF_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        # NCCL's own threads go where the GPU is, not where the engine has bound its own.
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    if len(choice.hcas) > 1:
        # Joins HCAs of the same subnet instead of the same number, since NCCL 2.30; older ones do not read it.
        common["NCCL_IB_SUBNET_AWARE_ROUTING"] = "1"
    if executor != "ray":
        return common
    return {
        **common,
        # It takes the GPU's memory, which is the host's, for a leak and kills the worker.
        "RAY_memory_monitor_refresh_ms": "0",
        # The placement group asks for node:VLLM_HOST_IP, so Ray must know itself by that address.
        "RAY_NODE_IP_ADDRESS": choice.address,
        "RAY_OVERRIDE_NODE_IP_ADDRESS": choice.address,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _keeps_node_env(engine_version: str, engine_env: Mapping[str, str]) -> bool:
    """Whether this engine's Ray executor leaves a worker the variables of its own node."""
    release, switch = core_engine_version.release(engine_version), engine_env.get(RAY_V2_SWITCH)
    if release >= RAY_KEEPS_NODE_ENV_SINCE:
        return switch != "0"
    return release >= RAY_V2_SWITCH_SINCE and switch == "1"


def _netdev(entry: Facts) -> Netdev:
    addresses = [IPv4Interface(f"{found['address']}/{found['prefix']}") for found in entry["addresses"]]
    return Netdev(entry["name"], tuple(addresses), entry["mtu"], entry["carrier"], entry["wireless"])


def _hca(entry: Facts) -> Hca:
    names = ("name", "netdev", "state", "rate", "pci", "pci_width", "pci_max_width", "pci_speed", "pci_max_speed")
    gids = tuple(Gid(**gid) for gid in entry["gids"])
    return Hca(**{name: entry[name] for name in names}, gids=gids, gids_from=entry["gids_from"])


def _links(box: HostFabric) -> list[FabricLink]:
    found = [FabricLink(hca, netdev, address) for hca, netdev in box.up for address in netdev.addresses]
    return sorted(found, key=lambda link: (link.subnet, link.hca.pci or "", link.hca.name))


def _rails(boxes: Sequence[HostFabric]) -> tuple[list[Rail], list[IPv4Network]]:
    """(a pair of links per subnet that both boxes have, lowest first; the subnets that a box has on two HCAs)."""
    by_subnet: list[dict[IPv4Network, list[FabricLink]]] = []
    for box in boxes:
        grouped: dict[IPv4Network, list[FabricLink]] = {}
        for link in _links(box):
            grouped.setdefault(link.subnet, []).append(link)
        by_subnet.append(grouped)
    first, second = by_subnet
    shared = sorted(first.keys() & second.keys())
    crowded = [subnet for subnet in shared if any(_hca_count(found[subnet]) > 1 for found in by_subnet)]
    rails: list[Rail] = []
    for subnet in shared:
        mine, other = first[subnet][0], second[subnet][0]
        # A second address of a netdev is no second rail.
        taken = any(mine.hca == rail[0].hca or other.hca == rail[1].hca for rail in rails)
        if subnet not in crowded and not taken:
            rails.append((mine, other))
    return rails, crowded


def _hca_count(found: Sequence[FabricLink]) -> int:
    return len({link.hca.name for link in found})


def _unready(boxes: Sequence[HostFabric]) -> Iterator[Refusal]:
    """What keeps one box from any fabric, whatever the other has."""
    for box in boxes:
        if not box.hcas and not box.ib_core:
            yield FABRIC_IB_CORE(
                what=f"{box.host} has no RDMA device and the module ib_core is not loaded",
                expected="ib_core and mlx5_ib, which DGX OS loads for the ConnectX-7",
                fix=f"ssh {box.host} sudo modprobe -a mlx5_ib ib_uverbs; after an update of the kernel, reboot.",
            )
        elif box.hcas and not any("/uverbs" in device for device in box.devices):
            yield FABRIC_NO_DEVICES(
                what=f"{box.host} has {_names(box.hcas)} and in /dev/infiniband {', '.join(box.devices) or 'nothing'}",
                expected="/dev/infiniband/uverbs0, without which NCCL takes TCP and says nothing",
                fix=f"ssh {box.host} sudo modprobe -a ib_uverbs rdma_cm.",
            )
        if box.up and not _links(box):
            yield FABRIC_NO_ADDRESS(
                what=f"{box.host} has a cable on {', '.join(f'{hca.name}/{netdev.name}' for hca, netdev in box.up)} "
                f"and no IPv4 address there{f' ({box.error})' if box.error else ''}",
                expected="an address on each, each in its own subnet",
                fix="vllm_fabric in the inventory and ansible-playbook fabric.yml, or netplan as the runbook shows.",
            )


def _crowded(boxes: Sequence[HostFabric], crowded: Sequence[IPv4Network]) -> Iterator[Refusal]:
    for box in boxes:
        found = [link for link in _links(box) if link.subnet in crowded]
        for subnet in crowded:
            inside = [link for link in found if link.subnet == subnet]
            if _hca_count(inside) > 1:
                seen = ", ".join(f"{link.netdev.name} {link.address}" for link in inside)
                yield FABRIC_TWINS_ONE_SUBNET(
                    what=f"{box.host} has {len(inside)} fabric netdevs in {subnet}: {seen}",
                    expected="each in its own subnet, because Linux sends a subnet's traffic through one of them and "
                    "the other's RDMA connections fail",
                    fix="give them subnets of their own with netplan, the same pair of subnets on both hosts.",
                )


def _mtu(boxes: Sequence[HostFabric], rails: Sequence[Rail]) -> Iterator[Refusal]:
    differing = [rail for rail in rails if rail[0].netdev.mtu != rail[1].netdev.mtu]
    if differing:
        seen = [
            " against ".join(
                f"{box.host} {link.netdev.name} {link.netdev.mtu}" for box, link in zip(boxes, rail, strict=True)
            )
            for rail in differing
        ]
        yield FABRIC_MTU(
            what=f"the MTU differs between the two ends: {'; '.join(seen)}",
            expected="the same on both, 9000 on both or 1500 on both",
            fix="set mtu in both hosts' netplan, then sudo netplan apply on both.",
        )


def _same_address(boxes: Sequence[HostFabric]) -> Iterator[Refusal]:
    """Also where it is a second address: which one an engine takes is the kernel's choice."""
    first, second = ({link.address.ip: link.netdev.name for link in _links(box)} for box in boxes)
    same = sorted(first.keys() & second.keys())
    if same:
        mine, other = boxes
        seen = ", ".join(f"{address} on {first[address]} and {second[address]}" for address in same)
        yield FABRIC_SAME_ADDRESS(
            what=f"{mine.host} and {other.host} have the same fabric address: {seen}",
            expected="every host its own, because it becomes VLLM_HOST_IP and names the node",
            fix="change one host's netplan, then sudo netplan apply there; or correct ansible_host, where both names "
            "are one box.",
        )


def _no_gid(boxes: Sequence[HostFabric], rails: Sequence[Rail]) -> Iterator[Refusal]:
    for side, box in enumerate(boxes):
        used = [rail[side] for rail in rails]
        missing = [link for link in used if link.hca.gids_from and link.gid_index is None]
        if missing:
            seen = "; ".join(f"{link.hca.name} has for {link.address.ip} {_gids(link.hca)}" for link in missing)
            yield FABRIC_NO_GID(
                what=f"{box.host} has no RoCE v2 GID of its fabric address: {seen}",
                expected="one of type RoCE v2 with the netdev's IPv4 address",
                fix=f"ssh {box.host} 'sudo ip link set {missing[0].netdev.name} down && sudo ip link set "
                f"{missing[0].netdev.name} up', after which the kernel fills the table anew.",
            )


def _gids(hca: Hca) -> str:
    return ", ".join(f"{gid.index}: {gid.type} {gid.address}" for gid in hca.gids) or "an empty table"


def _none(boxes: Sequence[HostFabric]) -> Refusal:
    return FABRIC_NONE(
        what=f"no fabric joins {' and '.join(box.host for box in boxes)}: "
        + "; ".join(f"{box.host} has {_described(box)}" for box in boxes),
        expected="an HCA on each that is up, with IPv4 addresses in one subnet",
        fix="plug the QSFP cable in on both ends, and give both ends addresses of one subnet.",
    )


def _described(box: HostFabric) -> str:
    """Every HCA with its netdev, state and addresses, for a message."""
    return ", ".join(_described_hca(box, hca) for hca in box.hcas) or "no RDMA device"


def _described_hca(box: HostFabric, hca: Hca) -> str:
    netdev = box.netdevs.get(hca.netdev or "")
    addresses = ", ".join(map(str, netdev.addresses)) if netdev else ""
    return f"{hca.name}/{hca.netdev or 'no netdev'} {hca.state} {addresses or 'without an address'}"


def _names(hcas: Sequence[Hca]) -> str:
    return ", ".join(hca.name for hca in hcas)


def _choice(box: HostFabric, used: Sequence[FabricLink], rails: Sequence[Rail]) -> FabricChoice:
    primary = used[0]
    choice = FabricChoice(
        host=box.host,
        address=str(primary.address.ip),
        netdev=primary.netdev.name,
        netdevs=tuple(link.netdev.name for link in used),
        hcas=tuple(link.hca.name for link in used),
        gid_index=primary.gid_index,
        mtu=primary.netdev.mtu,
        subnets=tuple(str(link.subnet) for link in used),
    )
    notes = (*_narrow(box, used), *_slow(box, used), *_alone(box, used), *_crossed(box, rails), *_wifi(box, choice))
    return replace(choice, notes=notes)


def _narrow(box: HostFabric, used: Sequence[FabricLink]) -> Iterator[str]:
    """PCIe below what the HCA can do. Its own maximum counts: a board wired too narrow is the usual cause."""
    for hca in (link.hca for link in used):
        if (hca.pci_width, hca.pci_speed) != (hca.pci_max_width, hca.pci_max_speed):
            yield str(
                FABRIC_LANE_WIDTH(
                    what=f"{box.host}: {hca.name} ({hca.pci}) runs at PCIe x{hca.pci_width}, {hca.pci_speed}",
                    expected=f"x{hca.pci_max_width}, {hca.pci_max_speed}; the pair works, with less bandwidth",
                    fix=f"ssh {box.host} sudo fwupdmgr update, then power the box off and on.",
                )
            )


def _slow(box: HostFabric, used: Sequence[FabricLink]) -> Iterator[str]:
    for hca in (link.hca for link in used):
        if hca.rate_gbps is not None and hca.rate_gbps < FULL_RATE_GBPS:
            yield str(
                FABRIC_HALF_BANDWIDTH(
                    what=f"{box.host}: {hca.name} runs at {hca.rate}",
                    expected=f"{FULL_RATE_GBPS} Gb/sec; the pair works, with less bandwidth",
                    fix="use a cable that is approved for 200 Gb/s on the Spark.",
                )
            )


def _alone(box: HostFabric, used: Sequence[FabricLink]) -> Iterator[str]:
    """A twin that the pair cannot use."""
    for link in used:
        for twin in box.hcas:
            if twin.port == link.hca.port and twin.name not in {other.hca.name for other in used}:
                yield str(
                    FABRIC_HALF_BANDWIDTH(
                        what=f"{box.host}: only {link.hca.name} carries the pair; twin: {_described_hca(box, twin)}",
                        expected="both twins in subnets that the other host shares; one twin has half the bandwidth",
                        fix="give the twin an address in a second subnet on both hosts.",
                    )
                )


def _crossed(box: HostFabric, rails: Sequence[Rail]) -> Iterator[str]:
    """Rails that NCCL before 2.30 joins wrongly: it pairs the HCAs of two hosts by their order, not by subnet."""
    orders = [sorted(rails, key=lambda rail: _order(rail[0].hca)), sorted(rails, key=lambda rail: _order(rail[1].hca))]
    if orders[0] != orders[1]:
        seen = "; ".join(f"{mine.subnet} joins {mine.hca.name} and {other.hca.name}" for mine, other in rails)
        yield str(
            FABRIC_CROSSED(
                what=f"{box.host}: the subnets cross the two hosts' HCAs: {seen}",
                expected="the same order on both, because NCCL before 2.30 joins the first to the first and then hangs",
                fix="swap the addresses of two netdevs on one host, or the cables.",
            )
        )


def _order(hca: Hca) -> tuple[str, str]:
    return hca.pci or "", hca.name


def _wifi(box: HostFabric, choice: FabricChoice) -> Iterator[str]:
    netdev = box.netdevs.get(box.default_route or "")
    if netdev and netdev.wireless:
        yield str(
            FABRIC_WIFI(
                what=f"{box.host}: the default route is WiFi, {netdev.name}; the pair uses {choice.netdev}",
                expected="a cable, because downloads and the API go by the default route",
                fix="plug in the 10 GbE port, or leave it: the pair does not need it.",
            )
        )
