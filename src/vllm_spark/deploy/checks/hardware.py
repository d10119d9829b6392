"""Machine, GPU and driver."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.refusal import Fix
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext

# CUDA 13 needs this branch (docs.nvidia.com/deploy/cuda-compatibility: "CUDA 13.x >= 580"). So does every image that a
# GB10 runs, because images for CUDA 12 hold no kernels for it (recipes/compatibility.yml).
OLDEST_DRIVER = 580


@check(
    "wrong-architecture",
    runbook="wrong-host",
    severity="refusal",
    needs=("machine",),
    what="{host} is {machine} and image {repository} is for {platforms}",
    expected="{machines}",
    fix="name a recipe whose image.platforms has the platform of {host}.",
)
def wrong_architecture(context: HostContext) -> Iterator[Observation]:
    machine, platforms = context.facts["machine"], context.spec.platforms
    machines = [MACHINES[platform] for platform in platforms]
    if machine not in machines:
        yield Observation(
            {
                "machine": machine,
                "repository": context.spec.recipe["image"]["repository"],
                "platforms": ", ".join(platforms),
                "machines": " or ".join(machines),
            }
        )


@check(
    "no-gpu",
    runbook="wrong-host",
    severity="refusal",
    needs=("gpus", "gpu_error"),
    what="nvidia-smi shows no GPU on {host}: {error}",
    expected="one GB10",
    fix="check the driver with nvidia-smi; after an update of DGX OS, reboot.",
)
def no_gpu(context: HostContext) -> Iterator[Observation]:
    if not context.facts["gpus"]:
        yield Observation({"error": context.facts["gpu_error"] or "an empty list"})


@check(
    "driver-too-old",
    runbook="driver-version",
    severity="refusal",
    needs=("gpus",),
    what="{host} has driver {driver}",
    expected=f"{OLDEST_DRIVER} or newer, which CUDA 13 needs",
    fix=Fix(f"ssh -t {{host}} sudo apt-get install nvidia-driver-{OLDEST_DRIVER}-open", "Then reboot it."),
)
def driver_too_old(context: HostContext) -> Iterator[Observation]:
    for gpu in context.facts.get("gpus") or []:
        branch = str(gpu.get("driver", "")).partition(".")[0]
        if branch.isdigit() and int(branch) < OLDEST_DRIVER:
            yield Observation({"driver": gpu["driver"]})
