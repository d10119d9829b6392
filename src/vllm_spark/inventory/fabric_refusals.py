"""The reasons why hosts cannot share a fabric. Pure: parsed facts in, refusals out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from itertools import combinations

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.inventory.links import FabricLink, Hca, HostFabric, Rail, hca_count

FABRIC_NO_CABLE = register("fabric-no-cable", runbook="fabric-no-cable")
FABRIC_IB_CORE = register("fabric-ib-core", runbook="fabric-no-devices")
FABRIC_NO_DEVICES = register("fabric-no-devices", runbook="fabric-no-devices")
FABRIC_NO_ADDRESS = register("fabric-no-address", runbook="fabric-no-address")
FABRIC_TWINS_ONE_SUBNET = register("fabric-twins-one-subnet", runbook="fabric-twins-one-subnet")
FABRIC_SHARED_SUBNET = register("fabric-shared-subnet", runbook="fabric-shared-subnet")
FABRIC_MTU = register("fabric-mtu", runbook="fabric-mtu")
FABRIC_SAME_ADDRESS = register("fabric-same-address", runbook="fabric-same-address")
FABRIC_NAME = register("fabric-name", runbook="fabric-netdev")
FABRIC_NO_GID = register("fabric-no-gid", runbook="fabric-no-gid")
FABRIC_NONE = register("fabric-none", runbook="fabric-none")

# The kernel accepts every name without a slash and white space. The firewall rules of a launch contain the netdev's,
# and root runs the launch.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# The refusal of a host on which DGX OS has powered the ConnectX-7 down.
NO_CABLE = "no cable, and without one DGX OS powers the NIC down (/etc/nvidia/cx7-hotplug-enabled)"
CABLE = "the QSFP cable in both Sparks, after which two netdevs and two HCAs appear"
PLUG_IN = "plug the cable in on both ends, wait 10 s, and check with ibdev2netdev."


def refusals(fabrics: Sequence[HostFabric], rails: Sequence[Rail], crowded: Sequence[IPv4Network]) -> Iterator[Refusal]:
    """Yield every reason why the hosts cannot share a fabric. `rails` and `crowded` are those of links.rails."""
    single = [
        *_no_devices(fabrics),
        *_odd_names(fabrics),
        *_twins_in_one_subnet(fabrics, crowded),
        *_shared_subnet(fabrics, rails),
        *_mtu(fabrics, rails),
        *same_address(fabrics),
        *_no_gid(fabrics, rails),
    ]
    yield from single
    # A host without addresses has its own refusal; "no common subnet" on top of it would hide the cause.
    if not rails and not crowded and not any(refusal.id != FABRIC_NO_DEVICES.id for refusal in single):
        yield _none(fabrics)


def _no_devices(fabrics: Sequence[HostFabric]) -> Iterator[Refusal]:
    """Yield what prevents a fabric on one host, whatever the other host has."""
    for fabric in fabrics:
        if fabric.powered_down:
            yield FABRIC_NO_CABLE(what=f"{fabric.host} has no ConnectX-7: {NO_CABLE}", expected=CABLE, fix=PLUG_IN)
        elif not fabric.hcas and not fabric.ib_core:
            yield FABRIC_IB_CORE(
                what=f"{fabric.host} has no RDMA device and the module ib_core is not loaded",
                expected="ib_core and mlx5_ib, which DGX OS loads for the ConnectX-7",
                fix="plug the cable in on both ends and wait 10 s. If it was in: "
                f"`ssh -t {fabric.host} sudo modprobe -a mlx5_ib ib_uverbs`; after an update of the kernel, reboot.",
            )
        elif fabric.hcas and not any("/uverbs" in device for device in fabric.devices):
            yield FABRIC_NO_DEVICES(
                what=f"{fabric.host} has {_names(fabric.hcas)} and in /dev/infiniband "
                f"{', '.join(fabric.devices) or 'nothing'}",
                expected="/dev/infiniband/uverbs0, without which NCCL uses TCP and reports nothing",
                fix=Fix(f"ssh -t {fabric.host} sudo modprobe -a ib_uverbs rdma_cm"),
            )
        if fabric.up and not fabric.links:
            cables = ", ".join(f"{hca.name}/{netdev.name}" for hca, netdev in fabric.up)
            masters = list(dict.fromkeys(netdev.master for _, netdev in fabric.up if netdev.master))
            bond = f"; they are part of {' and '.join(masters)}" if masters else ""
            yield FABRIC_NO_ADDRESS(
                what=f"{fabric.host} has a cable on {cables} and no IPv4 address there{bond}"
                f"{f' ({fabric.error})' if fabric.error else ''}",
                expected="an address on each, each in its own subnet"
                f"{', and none in a bond or bridge, of which RDMA has one rail' if masters else ''}",
                fix="vllm_fabric in the inventory and `ansible-playbook fabric.yml`, or netplan as the runbook shows.",
            )


def _odd_names(fabrics: Sequence[HostFabric]) -> Iterator[Refusal]:
    for fabric in fabrics:
        names = dict.fromkeys(name for link in fabric.links for name in (link.netdev.name, link.hca.name))
        odd = [name for name in names if not PLAIN_NAME.fullmatch(name)]
        if odd:
            yield FABRIC_NAME(
                what=f"{fabric.host} has a fabric device with the name {', '.join(map(repr, odd))}",
                expected="names of letters, digits and . _ -, because launches contain them",
                fix="remove the udev rule or the .link file that gives this name, then reboot that host.",
            )


def _twins_in_one_subnet(fabrics: Sequence[HostFabric], crowded: Sequence[IPv4Network]) -> Iterator[Refusal]:
    for fabric in fabrics:
        for subnet in crowded:
            links = [link for link in fabric.links if link.subnet == subnet]
            if hca_count(links) > 1:
                netdevs = ", ".join(f"{link.netdev.name} {link.address}" for link in links)
                yield FABRIC_TWINS_ONE_SUBNET(
                    what=f"{fabric.host} has {len(links)} fabric netdevs in {subnet}: {netdevs}",
                    expected="each in its own subnet, because Linux sends a subnet's traffic through one of them and "
                    "the other's RDMA connections fail",
                    fix="use netplan to put each into its own subnet, with the same pair of subnets on both hosts.",
                )


def _shared_subnet(fabrics: Sequence[HostFabric], rails: Sequence[Rail]) -> Iterator[Refusal]:
    """Yield a refusal per netdev beside the fabric by which the kernel may send to the other Spark. A larger network
    is harmless: the kernel takes the narrowest route."""
    for side, fabric in enumerate(fabrics):
        of_fabric = {link.netdev.name for link in fabric.links}
        for netdev in (one for name, one in fabric.netdevs.items() if name not in of_fabric):
            for link, other in ((rail[side], other) for rail in rails for other in rail if other is not rail[side]):
                routes = [one for one in netdev.addresses if other.address.ip in one.network]
                if any(one.network.prefixlen >= link.subnet.prefixlen for one in routes):
                    yield FABRIC_SHARED_SUBNET(
                        what=f"{fabric.host} has {link.netdev.name} {link.address} of the fabric and {netdev.name} "
                        f"{routes[0]} in one subnet",
                        expected="a subnet that only the fabric has, because Linux may send the pair's traffic through "
                        f"{netdev.name}",
                        fix="vllm_fabric in the inventory with other subnets and `ansible-playbook fabric.yml`, or "
                        "netplan as the runbook shows.",
                    )


def _mtu(fabrics: Sequence[HostFabric], rails: Sequence[Rail]) -> Iterator[Refusal]:
    differing = [rail for rail in rails if len({link.netdev.mtu for link in rail}) > 1]
    if differing:
        ends = [
            " against ".join(
                f"{fabric.host} {link.netdev.name} {link.netdev.mtu}"
                for fabric, link in zip(fabrics, rail, strict=True)
            )
            for rail in differing
        ]
        yield FABRIC_MTU(
            what=f"the MTU differs between the two ends: {'; '.join(ends)}",
            expected="the same on both, 9000 on both or 1500 on both",
            fix="set mtu in both hosts' netplan, then `sudo netplan apply` on both.",
        )


def same_address(fabrics: Sequence[HostFabric]) -> Iterator[Refusal]:
    """Yield a refusal even for a second address: the kernel chooses which one an engine uses."""
    named = [(fabric, {link.address.ip: link.netdev.name for link in fabric.links}) for fabric in fabrics]
    for (own, first), (other, second) in combinations(named, 2):
        same = sorted(first.keys() & second.keys())
        if not same:
            continue
        addresses = ", ".join(f"{address} on {first[address]} and {second[address]}" for address in same)
        yield FABRIC_SAME_ADDRESS(
            what=f"{own.host} and {other.host} have the same fabric address: {addresses}",
            expected="a different address on every host, because it becomes VLLM_HOST_IP and names the node",
            fix="change one host's netplan, then `sudo netplan apply` there; or correct ansible_host, if both names "
            "are the same Spark.",
        )


def _no_gid(fabrics: Sequence[HostFabric], rails: Sequence[Rail]) -> Iterator[Refusal]:
    for side, fabric in enumerate(fabrics):
        missing = [rail[side] for rail in rails if rail[side].hca.gids_from and rail[side].gid_index is None]
        if missing:
            tables = "; ".join(f"{link.hca.name} has for {link.address.ip} {_gids(link)}" for link in missing)
            netdev = missing[0].netdev.name
            yield FABRIC_NO_GID(
                what=f"{fabric.host} has no RoCE v2 GID of its fabric address: {tables}",
                expected="one of type RoCE v2 with the netdev's IPv4 address",
                fix=Fix(
                    f"ssh -t {fabric.host} 'sudo ip link set {netdev} down && sudo ip link set {netdev} up'",
                    "The kernel then fills the table again.",
                ),
            )


def _gids(link: FabricLink) -> str:
    return ", ".join(f"{gid.index}: {gid.type} {gid.address}" for gid in link.hca.gids) or "an empty table"


def _none(fabrics: Sequence[HostFabric]) -> Refusal:
    hcas = {fabric.host: ", ".join(map(fabric.describe, fabric.hcas)) or "no RDMA device" for fabric in fabrics}
    return FABRIC_NONE(
        what=f"no fabric joins {' and '.join(hcas)}: "
        + "; ".join(f"{host} has {names}" for host, names in hcas.items()),
        expected="an HCA on each that is up, with IPv4 addresses in one subnet",
        fix="plug in the QSFP cable on both ends, and set addresses of one subnet on both ends."
        if len(fabrics) == 2  # noqa: PLR2004  a pair
        else "a switch for one port of each, and addresses of one subnet on all (docs/operations/more-sparks.md).",
    )


def _names(hcas: Sequence[Hca]) -> str:
    return ", ".join(hca.name for hca in hcas)
