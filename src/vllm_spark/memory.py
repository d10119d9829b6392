"""Does it fit: what a start needs of the Spark's one pool of memory, against what is available now.

The engine takes util x total as a whole and refuses to start below it (vLLM v1/worker/utils.py,
request_memory), where "free" on a Spark is MemAvailable, so other processes of the host count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.refusal import Refusal
from vllm_spark.spec import Spec

GIB = 1 << 30

# Below this the box itself suffers: a desktop, sshd and the page cache of the weights need it.
DEFAULT_FLOOR_BYTES = 8 * GIB


def needed_bytes(recipe: Mapping[str, Any], total_bytes: int) -> int:
    """The most that a start takes on one Spark: the engine's reservation or the loading peak, whichever is larger."""
    budget = recipe["memory"]
    reserved = budget.get("utilization", 0) * total_bytes
    if "kv_cache_bytes" in budget:
        weights = recipe["model"].get("size_bytes", 0) / recipe["topology"]["tensor_parallel"]
        reserved = weights + budget["kv_cache_bytes"]
    return max(int(reserved), int(budget.get("loading_peak_bytes", 0)))


def refusals(spec: Spec, facts: Mapping[str, Any]) -> Iterator[Refusal]:
    """Refuse a start that would not fit. Where a unit of ours still runs, its memory is about to come back and
    nobody can say how much, so nothing is judged."""
    if facts.get("running_units"):
        return
    total, available = facts["memory"]["total"], facts["memory"]["available"]
    floor = spec.recipe["memory"].get("free_floor_bytes", DEFAULT_FLOOR_BYTES)
    needed = needed_bytes(spec.recipe, total)
    if needed + floor > available:
        yield Refusal(
            id="too-little-memory",
            what=f"{spec.host} has {gib(available)} available of {gib(total)}; {spec.deployment.name} takes "
            f"{gib(needed)} and the box keeps {gib(floor)}",
            expected=f"{gib(needed + floor)} available",
            fix="stop what uses it (ps axo rss,comm --sort -rss | head), or lower overrides.memory.utilization.",
            runbook="too-little-memory",
        )


def gib(size: float) -> str:
    """A size in GiB as messages show it."""
    return f"{size / GIB:.1f} GiB"
