"""Weaknesses of a fabric that works: less bandwidth than possible, or a risk with an older NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.inventory.fabric_refusals import FABRIC_MTU
from vllm_spark.inventory.link_config import DEFAULT_MTU
from vllm_spark.inventory.links import FabricLink, HostFabric, Rail

FABRIC_LANE_WIDTH = register("fabric-lane-width", runbook="fabric-lane-width")
FABRIC_HALF_BANDWIDTH = register("fabric-half-bandwidth", runbook="fabric-half-bandwidth")
FABRIC_CROSSED = register("fabric-crossed", runbook="fabric-crossed")
FABRIC_WIFI = register("fabric-wifi", runbook="fabric-wifi")

# The rate of a Spark's socket and cable (InfiniBand's name of the rate, which sysfs uses for RoCE too).
FULL_RATE_GBPS = 200


def notes(fabric: HostFabric, used: Sequence[FabricLink], rails: Sequence[Rail]) -> tuple[str, ...]:
    """Return the notes of one host in the format of refusals. They stop nothing. `used` are its links of `rails`."""
    weaknesses = (
        *_narrow_lanes(fabric, used),
        *_low_rate(fabric, used),
        *_small_mtu(fabric, used),
        *_unused_twin(fabric, used),
        *_crossed(fabric, rails),
        *_wifi(fabric, used[0].netdev.name),
    )
    return tuple(map(str, weaknesses))


def _narrow_lanes(fabric: HostFabric, used: Sequence[FabricLink]) -> Iterator[Refusal]:
    """Yield each HCA whose PCIe link is below its own maximum; a board with too few lanes is the usual cause."""
    for hca in (link.hca for link in used):
        if (hca.pci_width, hca.pci_speed) != (hca.pci_max_width, hca.pci_max_speed):
            yield FABRIC_LANE_WIDTH(
                what=f"{fabric.host}: {hca.name} ({hca.pci}) runs at PCIe x{hca.pci_width}, {hca.pci_speed}",
                expected=f"x{hca.pci_max_width}, {hca.pci_max_speed}; it works, with less bandwidth",
                fix=Fix(f"ssh -t {fabric.host} sudo fwupdmgr update", "Then power the Spark off and on."),
            )


def _low_rate(fabric: HostFabric, used: Sequence[FabricLink]) -> Iterator[Refusal]:
    for hca in (link.hca for link in used):
        if hca.rate_gbps is not None and hca.rate_gbps < FULL_RATE_GBPS:
            yield FABRIC_HALF_BANDWIDTH(
                what=f"{fabric.host}: {hca.name} runs at {hca.rate}",
                expected=f"{FULL_RATE_GBPS} Gb/sec; it works, with less bandwidth",
                fix="use a cable that is approved for 200 Gb/s on the Spark.",
            )


def _small_mtu(fabric: HostFabric, used: Sequence[FabricLink]) -> Iterator[Refusal]:
    # NVIDIA's scripts leave it at 1500 (0xSero/local-ai-registry#55).
    if small := [link.netdev for link in used if link.netdev.mtu and link.netdev.mtu < DEFAULT_MTU]:
        yield FABRIC_MTU(
            what=f"{fabric.host}: {' and '.join(f'{netdev.name} has MTU {netdev.mtu}' for netdev in small)}",
            expected=f"{DEFAULT_MTU} on both ends: one owner's prefill was 40 % slower without, and nothing says so",
            fix=f"set mtu: {DEFAULT_MTU} in the netplan of both ends, then `sudo netplan apply`; a switch needs it "
            "too.",
        )


def _unused_twin(fabric: HostFabric, used: Sequence[FabricLink]) -> Iterator[Refusal]:
    names = {link.hca.name for link in used}
    for link in used:
        for twin in fabric.hcas:
            if twin.port == link.hca.port and twin.name not in names:
                yield FABRIC_HALF_BANDWIDTH(
                    what=f"{fabric.host}: only {link.hca.name} carries the link; twin: {fabric.describe(twin)}",
                    expected="both twins in subnets that the other host shares; one twin has half the bandwidth",
                    fix="configure an address for the twin in a second subnet on both hosts.",
                )


def _crossed(fabric: HostFabric, rails: Sequence[Rail]) -> Iterator[Refusal]:
    """Yield a note if NCCL before 2.30 joins the rails wrongly: it pairs the HCAs of two hosts by order, not by
    subnet."""
    by_first, by_second = (sorted(rails, key=lambda rail: rail[side].hca.order) for side in (0, 1))
    if by_first != by_second:
        joins = "; ".join(f"{own.subnet} joins {own.hca.name} and {other.hca.name}" for own, other in rails)
        yield FABRIC_CROSSED(
            what=f"{fabric.host}: the subnets cross the two hosts' HCAs: {joins}",
            expected="the same order on both, because NCCL before 2.30 joins the first to the first and then hangs",
            fix="swap the addresses of two netdevs on one host, or the cables.",
        )


def _wifi(fabric: HostFabric, primary: str) -> Iterator[Refusal]:
    netdev = fabric.netdevs.get(fabric.default_route or "")
    if netdev and netdev.wireless:
        yield FABRIC_WIFI(
            what=f"{fabric.host}: the default route is WiFi, {netdev.name}; the ranks use {primary}",
            expected="a cable, because downloads and the API use the default route",
            fix="plug in the 10 GbE port, or leave it: the ranks do not need it.",
        )
