"""Settings and limits of the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext

# Bits of NVML's clock event reasons (nvml.h, nvmlClocksEventReason*).
CLOCKS_SET, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x2, 0x20, 0x40, 0x80
# Below this load in percent a clock is low because nothing needs more; the doctor's signature starts here too.
LOADED_PERCENT = 90


@check(
    "gpu-clocks-set",
    runbook="gpu-clocks",
    severity="warning",
    needs=("gpus",),
    what="the clock of the GPU of {host} is limited by a setting (nvidia-smi --lock-gpu-clocks or application clocks); "
    "2200 MHz cost one owner 15 to 35 % of the speed, depending on the work, and another saw no difference",
    fix="`ssh -t {host} sudo nvidia-smi --reset-gpu-clocks`, unless you have set it against heat or noise.",
    source="NVML nvmlClocksEventReasonApplicationsClocksSetting (0x2); "
    "MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#38; none: MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#146",
)
def gpu_clocks_set(context: HostContext) -> Iterator[Observation]:
    yield from _with_reason(context, CLOCKS_SET)


@check(
    "gpu-hot",
    runbook="gpu-clocks",
    severity="warning",
    needs=("gpus",),
    what="the driver slows the GPU of {host} down because of its temperature",
    fix="improve the Spark's airflow and check again while it serves: `ssh -t {host} nvidia-smi -q -d "
    "PERFORMANCE,TEMPERATURE`.",
    source="NVML nvmlClocksEventReasonSwThermalSlowdown (0x20)",
)
def gpu_hot(context: HostContext) -> Iterator[Observation]:
    yield from _with_reason(context, SW_THERMAL)


@check(
    "persistence-off",
    runbook="driver-version",
    severity="warning",
    needs=("gpus",),
    what="persistence mode is off on {host}: the driver releases the GPU whenever nothing uses it, and each start "
    "waits for it again",
    fix="`ssh -t {host} sudo systemctl enable --now nvidia-persistenced`.",
    source="NVIDIA's Driver Persistence guide (docs.nvidia.com/deploy/driver-persistence)",
)
def persistence_off(context: HostContext) -> Iterator[Observation]:
    if context.gpu.get("persistence") is False:
        yield Observation(evidence="persistence_mode Disabled")


def nvidia_smi_lines(context: HostContext) -> Iterator[str]:
    """Yield the lines of nvidia-smi that the doctor's signatures match."""
    gpu = context.gpu
    power, load, clock = gpu.get("power_w"), gpu.get("load_percent"), gpu.get("sm_mhz")
    if load is not None and load >= LOADED_PERCENT and power is not None and clock is not None:
        yield f"{power:.2f} W, {load:.0f} %, {clock:.0f} MHz"
    reasons = gpu.get("event_reasons") or 0
    for bit, name in ((HW_POWER_BRAKE, "HW Power Brake Slowdown"), (HW_THERMAL, "HW Thermal Slowdown")):
        if reasons & bit:
            yield f"{name} : Active"


def _with_reason(context: HostContext, bit: int) -> Iterator[Observation]:
    reasons = context.gpu.get("event_reasons") or 0
    if reasons & bit:
        yield Observation(evidence=f"clocks_event_reasons.active {reasons:#018x}")
