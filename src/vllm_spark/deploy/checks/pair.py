"""Differences between the two hosts of a pair, each reported at the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "driver-differs",
    runbook="driver-version",
    severity="warning",
    needs=("gpus",),
    what="the drivers differ: {host} {mine}, {peer} {other}",
    fix="`sudo apt-get update && sudo apt-get full-upgrade` on both and reboot, so that one fault has one cause.",
    source="one service, one stack; NVIDIA's connect-two-sparks playbook updates both first",
)
def driver_differs(context: HostContext) -> Iterator[Observation]:
    yield from _differing("driver", context, lambda one: one.driver)


@check(
    "kernel-differs",
    runbook="driver-version",
    severity="warning",
    needs=("kernel",),
    what="the kernels differ: {host} {mine}, {peer} {other}",
    fix="`sudo apt-get update && sudo apt-get full-upgrade` on both and reboot.",
    source="NVIDIA/open-gpu-kernel-modules#1358: the kernel decided, the driver's package was the same",
)
def kernel_differs(context: HostContext) -> Iterator[Observation]:
    yield from _differing("kernel", context, lambda one: one.kernel)


@check(
    "bios-differs",
    runbook="firmware",
    severity="warning",
    needs=("host",),
    what="the firmware of the two Sparks differs: {host} {mine}, {peer} {other}",
    fix="`sudo fwupdmgr refresh && sudo fwupdmgr update` on both with the servers stopped, then power off and on.",
    source="Entrpi/ds4-on-spark#16, a comparison of two units; a pair is as fast as its slower rank",
)
def bios_differs(context: HostContext) -> Iterator[Observation]:
    yield from _differing("bios", context, lambda one: one.bios)


@check(
    "nic-firmware-differs",
    runbook="firmware",
    severity="warning",
    needs=("host",),
    what="the firmware of the ConnectX-7 differs: {host} {mine}, {peer} {other}",
    fix="`sudo fwupdmgr refresh && sudo fwupdmgr update` on both with the servers stopped, then power off and on.",
    source="/sys/class/infiniband/*/fw_ver; 28.45.4028 in geerlingguy/sbc-reviews#92 and "
    "NVIDIA/dgx-spark-playbooks#108",
)
def nic_firmware_differs(context: HostContext) -> Iterator[Observation]:
    yield from _differing("fw_ver", context, _nic_firmware)


def _nic_firmware(context: HostContext) -> str:
    versions = (context.host_facts.get("nics") or {}).values()
    return ", ".join(sorted({version for version in versions if version}))


def _differing(name: str, context: HostContext, version: Callable[[HostContext], str]) -> Iterator[Observation]:
    own = version(context)
    for worker in context.workers:
        other = version(worker)
        if own and other and own != other:
            values = {"peer": worker.host, "mine": own, "other": other}
            yield Observation(values, evidence=f"{name} {own} and {other}")
