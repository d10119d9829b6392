"""Other users of the GPU: Ollama, processes and containers."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.types import ProcessFacts
from vllm_spark.core.units import gib
from vllm_spark.deploy import holders
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext

# Own figure: a start leaves gigabytes of headroom (sizing/memory.py, DEFAULT_FLOOR_BYTES), so less changes nothing.
USED_BYTES = 512 << 20
UNKNOWN_AMOUNT = "an unknown amount"


@check(
    "ollama-loaded",
    runbook="gpu-memory-held",
    severity="warning",
    needs=("host",),
    what="Ollama holds {amount} of the Spark's memory with {models}",
    fix="run it again with `-e unload_ollama=true`, which makes Ollama unload, or `ollama stop MODEL` on {host}.",
    source="Ollama docs/api.md (/api/ps, keep_alive); field report 002, whose checklist unloads before vLLM starts",
)
def ollama_loaded(context: HostContext) -> Iterator[Observation]:
    if models := context.host_facts.get("ollama"):
        sizes = "; ".join(f"{model['name']} {gib(model['bytes'])}" for model in models)
        amount = gib(sum(model["bytes"] for model in models))
        yield Observation(
            {"models": ", ".join(model["name"] for model in models), "amount": amount}, evidence=f"/api/ps {sizes}"
        )


@check(
    "gpu-process",
    runbook="gpu-memory-held",
    severity="warning",
    needs=("host", "docker"),
    what="{name} computes on the GPU of {host} and holds {amount} of the memory that the model server needs",
    fix="{how}{lend}.",
    source="nvidia-smi --query-compute-apps, the only place where a GB10 reports GPU memory (field report 003)",
)
def gpu_process(context: HostContext) -> Iterator[Observation]:
    """Yield each container, unit or process once, with the sum of its processes."""
    own = context.docker.get("containers") or {}
    owners: dict[tuple[str, str], list[ProcessFacts]] = {}
    for process in context.host_facts.get("processes") or []:
        owner = holders.owner(process)
        if owner[1] not in own and not (_is_ollama(process) and context.host_facts.get("ollama")):
            owners.setdefault(owner, []).append(process)
    for (kind, name), group in owners.items():
        sizes = [process["bytes"] for process in group if process["bytes"] is not None]
        known = len(sizes) == len(group)
        if not known or sum(sizes) >= USED_BYTES:
            pids = ", ".join(str(process["pid"]) for process in group)
            title = f"{group[0]['process']} (pid {pids})"
            amount = gib(sum(sizes)) if known else UNKNOWN_AMOUNT
            yield Observation(
                {
                    "name": title if kind == "process" else f"{kind} {name}",
                    "amount": amount,
                    "how": holders.how_to_stop(kind, name, context.host, pids),
                    "lend": f"; or {holders.lease(context.host, sum(sizes))}" if known else "",
                },
                evidence=f"compute-apps {title}, {amount}",
            )


@check(
    "gpu-container",
    runbook="gpu-memory-held",
    severity="warning",
    needs=("host", "docker"),
    what="container {name} has access to the GPU of {host} and can allocate memory at any time, which no budget of "
    "the Spark counts",
    fix="{how}. Or leave it if it stays idle.",
    source="docker inspect (HostConfig.DeviceRequests, Runtime); vllm#46307: loading and profiling go above the "
    "engine's share",
)
def gpu_container(context: HostContext) -> Iterator[Observation]:
    """Yield containers with the GPU that are not the toolkit's and that gpu-process does not name."""
    named = {holders.owner(process)[1] for process in context.host_facts.get("processes") or []}
    own = context.docker.get("containers") or {}
    for name in context.docker.get("on_gpu") or []:
        if name not in own and name not in named and not (context.host_facts.get("ollama") and "ollama" in name):
            how = holders.how_to_stop("container", name, context.host, "")
            yield Observation({"name": name, "how": how}, evidence=f"docker inspect {name}")


def _is_ollama(process: ProcessFacts) -> bool:
    names = (process["process"], process.get("unit"), process.get("container"))
    return any("ollama" in name for name in names if name)
