"""The way in which Docker gives the GPU to a container."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Fix
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext

LOSS = (
    "any `systemctl daemon-reload`, such as that of an update or a deploy, takes the GPU away from a running container"
)
SOURCE = "NVIDIA/nvidia-container-toolkit#48, #1227"


@check(
    "cdi-stale",
    runbook="container-start",
    severity="refusal",
    needs=("docker",),
    what="{file} on {host} names {missing}, which does not exist, so Docker starts no container with the GPU",
    expected="a CDI file of the driver that is installed",
    fix=Fix("ssh -t {host} sudo nvidia-ctk cdi generate --output={file}"),
)
def cdi_stale(context: HostContext) -> Iterator[Observation]:
    if missing := context.cdi.get("missing"):
        yield Observation({"file": context.cdi["file"], "missing": missing})


@check(
    "gpu-without-cdi",
    runbook="gpu-taken-away",
    severity="warning",
    needs=("docker",),
    what=f"Docker of {{host}} has no CDI file of the GPU: {LOSS}",
    fix=Fix(
        "ssh -t {host} sudo systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service",
        "Then deploy: the server starts again.",
    ),
    source=SOURCE,
)
def gpu_without_cdi(context: HostContext) -> Iterator[Observation]:
    if context.cdi.get("enabled") and context.cdi.get("file") == "" and _systemd_manages(context):
        yield Observation(evidence="docker info: no device nvidia.com/gpu=all")


@check(
    "cdi-off",
    runbook="gpu-taken-away",
    severity="warning",
    needs=("docker",),
    what=f"Docker of {{host}} does not read CDI files: {LOSS}",
    fix=Fix(
        "ssh -t {host} 'sudo nvidia-ctk runtime configure --runtime=docker --cdi.enabled && sudo systemctl restart "
        "docker'",
        "It stops all containers of {host} for a moment. Then deploy.",
    ),
    source=SOURCE,
)
def cdi_off(context: HostContext) -> Iterator[Observation]:
    if context.cdi.get("enabled") is False and _systemd_manages(context):
        yield Observation(evidence=f"docker info: Docker {context.docker['version']}, no CDI spec directories")


def _systemd_manages(context: HostContext) -> bool:
    """Return True if systemd manages the devices of containers. With cgroupfs a reload does not touch them."""
    return context.docker.get("cgroups") == "systemd"
