"""Memory of the host: too little for the start, or in use by the page cache, swap or the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Refusal
from vllm_spark.core.units import gib
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.sizing import forecast, memory, request_limits

# MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47: "several GiB" are lost without dropping the caches.
PAGE_CACHE_BYTES = 8 << 30
# Own figure: an idle desktop has some hundred MiB of unused pages swapped out, which does no harm.
SWAP_USED_BYTES = 1 << 30
# Own figure: the recipes that leave less than a quarter of the memory to the host.
LARGE_SHARE = 0.75
# 0.9 to 9.3 GiB were measured with kernels 7.0, and NCCL failed with each; with kho=off CmaFree is within CmaTotal.
# No other kernel is known to keep memory this way, so that more is asked of it.
KEPT_BYTES = 1 << 30
KEPT_BYTES_7_0 = 1 << 20


@check("too-little-memory", runbook="too-little-memory", severity="refusal", needs=("memory", "running_units"))
def too_little_memory(context: HostContext) -> Iterator[Refusal]:
    """Yield the refusal that the forecast uses too. While a unit of the toolkit runs, its memory will come back and
    its amount is unknown, so nothing is refused."""
    if not context.serves:
        spec = context.spec
        yield from memory.too_little_refusal(spec.deployment.name, spec.host, spec.recipe, context.facts["memory"])


@check("no-room-for-the-cache", runbook="plan-no-go", severity="refusal", needs=("memory",))
def no_room_for_the_cache(context: HostContext) -> Iterator[Refusal]:
    """Yield the refusal that the forecast uses too: the weights do not fit into the engine's share, or the cache does
    not hold one request. What another process uses does not matter here."""
    spec = context.spec
    model = memory.model_of(spec.recipe)
    if model:
        tokens = request_limits.longest(spec.recipe, model.architecture if model else None)
        fit = memory.fit(spec.recipe, model, context.facts["memory"], tokens)
        load = forecast.ForecastRequest()
        yield from forecast.too_small(spec.deployment.name, spec.host, spec.recipe, fit, load)


@check(
    "page-cache",
    runbook="gpu-memory-held",
    severity="warning",
    needs=("memory", "running_units"),
    what="{cache} of the memory of {host} is page cache, which counts as available; the start takes {needed} and "
    "{free} are free, and CUDA does not always get the rest in time",
    fix="`ssh -t {host} \"sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'\"` before the deploy, never while a "
    "server starts.",
    source="vllm#48140, NVIDIA/xr-ai#440; NVIDIA's Spark playbooks drop caches before a start",
)
def page_cache(context: HostContext) -> Iterator[Observation]:
    facts = context.facts["memory"]
    free, cached = facts.get("free"), facts.get("page_cache")
    if free is None or cached is None or context.serves:
        return
    needed, available = context.needed_bytes, facts["available"]
    if cached >= PAGE_CACHE_BYTES and free < needed <= available:
        yield Observation(
            {"cache": gib(cached), "needed": gib(needed), "free": gib(free)},
            evidence=f"MemFree {gib(free)}, MemAvailable {gib(available)}",
        )


@check(
    "swap-in-use",
    runbook="swap",
    severity="warning",
    needs=("memory", "host"),
    what="{used} of the {total} of swap are in use on {host} (vm.swappiness {swappiness}): a swapped-out page comes "
    "back at the speed of a disk, and a rank that waits for it looks hung",
    fix='`ssh -t {host} "sudo swapoff --all && sudo swapon --all"` with nothing loaded, then `sudo sysctl '
    "vm.swappiness=1`, or leave swap off.",
    source="eugr/spark-vllm-docker#321 (a head swapped out: RPC call to sample_tokens timed out)",
)
def swap_in_use(context: HostContext) -> Iterator[Observation]:
    facts = context.facts["memory"]
    total, free = facts.get("swap_total"), facts.get("swap_free")
    swappiness = context.host_facts.get("swappiness")
    if total is not None and free is not None and total - free >= SWAP_USED_BYTES:
        yield Observation(
            {
                "used": gib(total - free),
                "total": gib(total),
                "swappiness": "unknown" if swappiness is None else str(swappiness),
            },
            evidence=f"SwapTotal {gib(total)}, SwapFree {gib(free)}",
        )


@check(
    "swap-on",
    runbook="swap",
    severity="warning",
    needs=("memory", "running_units"),
    what="{host} has {total} of swap, and {name} takes {share} of the memory: where memory runs out, the Spark "
    "swaps and stops answering until its power button is held, and without swap the kernel ends a process instead",
    fix="`ssh -t {host} sudo swapoff --all`, or vllm_swap_off: true, which does it at every start. With "
    "swap on, leave more memory: lower overrides.memory.utilization.",
    source='kelnei\'s docker-compose.spark.yml for 0.78 ("disable swap strongly recommended"); '
    "NVIDIA/dgx-spark-playbooks#102 (a node froze and needed its power button)",
)
def swap_on(context: HostContext) -> Iterator[Observation]:
    """Check for swap beside a launch that leaves little. `swap-in-use` says more where swap is in use."""
    facts = context.facts["memory"]
    total, free = facts.get("swap_total"), facts.get("swap_free")
    share = context.needed_bytes / facts["total"]
    if not total or free is None or total - free >= SWAP_USED_BYTES or share < LARGE_SHARE:
        return
    yield Observation(
        {"total": gib(total), "name": context.spec.deployment.name, "share": f"{share:.0%}"},
        evidence=f"SwapTotal {gib(total)}",
    )


@check(
    "kernel-keeps-memory",
    runbook="kernel-known-issue",
    severity="warning",
    needs=("memory", "kernel"),
    what="the kernel of {host}, {kernel}, keeps {kept} in pages that can be lent and not pinned (kexec handover): "
    "NCCL's registration of memory fails there (ibv_reg_mr: Cannot allocate memory) once the model is loaded",
    fix="add kho=off to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, `sudo update-grub`, reboot; or boot a 6.17 "
    "kernel.",
    source="NVIDIA/NV-Kernels#591, MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259, "
    "NVIDIA/open-gpu-kernel-modules#1358; NVIDIA/NV-Kernels#590 and eugr/spark-vllm-docker#389 (0.9 GiB)",
)
def kernel_keeps_memory(context: HostContext) -> Iterator[Observation]:
    """Check for pages of a kexec handover: free CMA pages that the total of CMA does not count."""
    facts = context.facts["memory"]
    total, free = facts.get("cma_total"), facts.get("cma_free")
    least = KEPT_BYTES_7_0 if context.kernel.startswith("7.0.") else KEPT_BYTES
    if total is not None and free is not None and free - total >= least:
        yield Observation(
            {"kernel": context.kernel, "kept": gib(free - total)},
            evidence=f"CmaTotal {gib(total)}, CmaFree {gib(free)}",
        )
