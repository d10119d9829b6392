"""Versions of kernel, driver and firmware with a known fault."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "kernel-6.17.0-1008",
    runbook="kernel-known-issue",
    severity="warning",
    needs=("kernel",),
    what="kernel {version} of {host} has panicked elsewhere, after which the driver finds no GPU until the power has "
    "been off",
    fix="`sudo apt-get update && sudo apt-get full-upgrade` on {host}, then reboot into a newer kernel.",
    source="forums.developer.nvidia.com/t/366026 (pstore of several Sparks); other owners run it without a panic",
)
def kernel_panics(context: HostContext) -> Iterator[Observation]:
    yield from _matching("kernel", context.kernel, r"6\.17\.0-1008-nvidia.*")


@check(
    "driver-590",
    runbook="driver-version",
    severity="warning",
    needs=("gpus",),
    what="driver {version} of {host} is of branch 590, with which one site saw CUDA graphs deadlock on GB10; 580.142 "
    "to 580.178 ran without that",
    fix="`sudo apt-get install nvidia-driver-580-open` on {host} and reboot, if a server hangs while it captures "
    "graphs.",
    source="conselara.dev/notes/dgx-spark-gb10-hardware-reference; eugr/spark-vllm-docker#256 and #321, "
    "timothystewart6/techno-tim.github.io#371 (580 good)",
)
def driver_590(context: HostContext) -> Iterator[Observation]:
    yield from _matching("driver", context.driver, r"590\..*")


@check(
    "bios-old",
    runbook="firmware",
    severity="warning",
    needs=("host",),
    what="firmware {version} of {host} is older than the release of April 2026 (0105): the second ConnectX-7 "
    "controller gets two PCIe lanes of four, and prefill ran at half its speed",
    fix="`sudo fwupdmgr refresh && sudo fwupdmgr update` on {host} with the server stopped, then power off and on.",
    source="Entrpi/ds4-on-spark#16 (0104 against 0105), "
    "tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark#35",
)
def bios_old(context: HostContext) -> Iterator[Observation]:
    yield from _matching("bios", context.bios, r"GX10DGX\.(?:00\d\d|010[0-4])\..*")


@check(
    "bios-two-speeds",
    runbook="firmware",
    severity="warning",
    needs=("host",),
    what="firmware {version} of {host} is one with which GPUs of Sparks changed between a fast and a slow state that "
    "nvidia-smi does not show (63 and 94 ms a step); eight Sparks with 5.36_0ACUM027 did not",
    fix="`sudo fwupdmgr refresh && sudo fwupdmgr update` on {host} with the server stopped, then power off and on.",
    source="tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark#1",
)
def bios_two_speeds(context: HostContext) -> Iterator[Observation]:
    yield from _matching("bios", context.bios, r"5\.36_0ACUM0(?:0\d|1[0-8])(?:\D.*)?")


def _matching(name: str, version: str, pattern: str) -> Iterator[Observation]:
    if re.fullmatch(pattern, version):
        yield Observation({"version": version}, evidence=f"{name} {version}")
