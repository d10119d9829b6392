"""Memory budgets of the deployments that share a Spark: what each takes, and the cache that each gets. Pure.

The budget of a deployment is its weights, its cache, what the engine takes beside them, and its processes on the host.
The result does not depend on the order of the starts, because nothing in it was measured on the host but its memory.

Source: two real servers on one H200 with vLLM 0.20.2 and 0.31.0 (issue 52). A cache in bytes was exact in every start;
beside weights and cache a server took 1.0 to 1.15 GiB idle and up to 2.2 GiB under load, with 8,192 batched tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB, gib
from vllm_spark.recipe import rules
from vllm_spark.recipe.attention_layers import Attention
from vllm_spark.recipe.host_memory import Taken
from vllm_spark.sizing import memory, recipe_engine, reference_spark, request_limits

BUDGETS_TOO_LARGE = register("budgets-too-large", runbook="several-servers")
BUDGET_UNKNOWN = register("budget-unknown", runbook="several-servers")

# What an engine takes beside weights and cache: its CUDA context and its graphs, and what grows under load with the
# tokens of one step.
IDLE_BYTES, GROWTH_BYTES, GROWTH_TOKENS = int(1.1 * GIB), int(1.1 * GIB), 8192
# What the host itself has of the memory before a server starts; of a look-alike, which is smaller than a Spark, a part.
HOST_BYTES, HOST_PART = reference_spark.HOST_BYTES, 6
# The engine compares shares of the memory; two digits are what a person reads.
SHARE_STEPS = 100
# Flags with which the cache of a rank is another one, and the widths of its numbers without scales beside them.
OTHER_CACHE = frozenset(("num-gpu-blocks-override", "decode-context-parallel-size"))
WHOLE_BYTES = (1.0, 2.0)
# The key of `memory` of a plan whose cache no recipe sets.
DIVIDED_KEY = "divided"


@dataclass(frozen=True, slots=True)
class Budget:
    """What one deployment takes of a Spark, in bytes.

    - `engine`: beside weights and cache; `host`: its processes and what flags put on the host
    - `peak`: of a start; 0 if it needs no more than the server that is ready
    - `request`: the cache of one request of `longest` tokens, 0 if it is not known
    - `fixed`: the recipe or the overrides set the cache, or there is none, as in an encoder
    """

    name: str
    weights: int
    engine: int
    host: int
    cache: int
    peak: int
    floor: int
    request: int
    longest: int
    fixed: bool

    @property
    def total(self) -> int:
        """The memory that the deployment takes once it is ready, under load."""
        return self.weights + self.cache + self.engine + self.host

    @property
    def most(self) -> int:
        """The peak of its start."""
        return max(self.total, self.peak)


def of_recipe(name: str, recipe: Document) -> Budget:
    """Return the budget of a resolved recipe; its cache is that of `memory.kv_cache_bytes`, or 0: of an encoder, and
    of others until it is divided.

    Raises RefusedError if nothing tells the size of the weights."""
    model, taken = memory.model_of(recipe), memory.taken_parts(recipe)
    weights = memory.held_bytes(recipe, model, taken)
    if not weights:
        raise BUDGET_UNKNOWN.error(
            what=f"nothing tells how large the weights of {name} are",
            expected="model.architecture with model.layout, or model.size_bytes, in the recipes of a shared Spark",
            fix=f"set model.size_bytes in the recipe of {name}, or `active: false` on all but one deployment there.",
        )
    fixed = memory.is_encoder(recipe) or ("kv_cache_bytes" in recipe["memory"] and DIVIDED_KEY not in recipe["memory"])
    batched, request, longest = recipe_engine.batched_tokens(recipe), 0, 0
    if model:
        longest = request_limits.longest(recipe, model.architecture)
        request = memory.request_bytes(recipe, model, longest)
    return Budget(
        name=name,
        weights=weights,
        engine=IDLE_BYTES + GROWTH_BYTES * batched // GROWTH_TOKENS + _sum(part for part in taken if part.inside),
        host=_sum(part for part in taken if not (part.inside or part.disk)),
        cache=int(recipe["memory"].get("kv_cache_bytes", 0)) if fixed else 0,
        peak=memory.loading_peak_bytes(recipe),
        floor=memory.floor_bytes(recipe),
        request=request,
        longest=longest,
        fixed=fixed,
    )


def _sum(parts: Iterable[Taken]) -> int:
    return sum(part.bytes for part in parts)


def floor(budgets: Sequence[Budget]) -> int:
    """Return what stays free: the largest floor of the deployments."""
    return max(budget.floor for budget in budgets)


def divided(budgets: Sequence[Budget], total: int) -> list[Budget]:
    """Return the budgets with their caches, in whole GiB. `total` is the memory of the Spark in bytes.

    A cache that the recipe or the overrides set stays as it is. Each other deployment gets the cache of one longest
    request first, and then an equal part of what is left beside all weights, engines, processes and the floor."""
    least = [budget if budget.fixed else replace(budget, cache=_whole(budget.request)) for budget in budgets]
    sharers = sum(not budget.fixed for budget in least)
    more = (total - needed(least, total)) // GIB // max(1, sharers) * GIB
    return [budget if budget.fixed or more <= 0 else replace(budget, cache=budget.cache + more) for budget in least]


def _whole(size: int) -> int:
    """Round up to whole GiB, at least one: vLLM before 0.33 compiles anew for each size of the cache."""
    return max(1, math.ceil(size / GIB)) * GIB


def host_bytes(total: int) -> int:
    """Return what the host itself has of the memory. The floor is beside it: a start waits until it is available."""
    return min(HOST_BYTES, total // HOST_PART)


def needed(budgets: Sequence[Budget], total: int) -> int:
    """Return what all take together with the host and the floor: one loads at a time, beside the others."""
    loading = max(budget.most - budget.total for budget in budgets)
    return sum(budget.total for budget in budgets) + loading + floor(budgets) + host_bytes(total)


def share(budget: Budget, total: int) -> float:
    """Return the utilization of an engine: its own memory, rounded down, so that its own check proves this room."""
    own = budget.weights + budget.cache + budget.engine
    return max(1, own * SHARE_STEPS // total) / SHARE_STEPS


def with_budget(recipe: Document, budget: Budget, total: int) -> dict[str, Any]:
    """Return a recipe whose `memory` is its part of a shared Spark: the cache in bytes, and the engine's own gate."""
    taken = memory.taken_parts(recipe)
    base, inside = _sum(part for part in taken if part.base), _sum(part for part in taken if part.inside)
    own = {
        **({} if memory.is_encoder(recipe) else {"kv_cache_bytes": budget.cache}),
        "utilization": share(budget, total),
        memory.WORKSPACE_KEY: budget.engine - inside + base,
        **({} if budget.fixed else {DIVIDED_KEY: True}),
    }
    return {**recipe, "memory": {**recipe["memory"], **own}}


def refusals(host: str, budgets: Sequence[Budget], total: int) -> Iterator[Refusal]:
    """Yield the refusal of a host whose budgets do not fit together, with the table of who has what."""
    if (sum_ := needed(budgets, total)) <= total:
        return
    names = [budget.name for budget in budgets]
    rows = "; ".join(row(budget) for budget in budgets)
    yield BUDGETS_TOO_LARGE(
        what=f"{' and '.join(names)} are active on {host} and need {gib(sum_)} of {gib(total)}: {rows}; "
        f"the host itself has {gib(host_bytes(total))}, and {gib(floor(budgets))} stay free",
        expected=f"budgets of {gib(total)} together",
        fix=f"set `active: false` on all but one of {', '.join(names)}, or lower overrides.args.max-model-len or "
        "overrides.memory.kv_cache_bytes of one of them.",
    )


def row(budget: Budget) -> str:
    """Return what a deployment takes, in words."""
    peak = f", {gib(budget.peak)} while it loads" if budget.peak > budget.total else ""
    return (
        f"{budget.name} {gib(budget.total)} (weights {gib(budget.weights)}, cache {gib(budget.cache)}, "
        f"engine {gib(budget.engine)}, host {gib(budget.host)}{peak})"
    )


def table(host: str, budgets: Sequence[Budget], total: int) -> Iterator[str]:
    """Yield the lines of `plan` about a shared Spark: a row per deployment with its context, the sum, what is left."""
    for budget in budgets:
        holds = f": {budget.cache / budget.request:.1f} requests of {budget.longest:,} tokens" if budget.request else ""
        yield f"memory of {host}: {row(budget)}{holds}"
    both, own, free = sum(budget.total for budget in budgets), host_bytes(total), floor(budgets)
    yield (
        f"memory of {host}: {gib(both)} of {gib(total)} together, the host itself has {gib(own)}, "
        f"{gib(free)} stay free, {gib(total - both - own - free)} left"
    )


def cache_tokens(recipe: Document) -> int | None:
    """Return the tokens that the engine will report for a cache of `memory.kv_cache_bytes`, None if they are unknown.

    They are exact for a model whose layers all keep K and V of every token, in BF16 or FP8: whole blocks of one kind
    (measured: 58,240 of 58,254 possible in 8 GiB of Qwen3-8B). A mixture of layers has no single number of tokens
    (sizing/kv_cache.py).
    """
    model = memory.model_of(recipe) if "kv_cache_bytes" in recipe["memory"] else None
    if model is None or "drafter" in recipe or OTHER_CACHE & recipe["args"].keys() or rules.stages_of(recipe) > 1:
        return None
    cache = model.cache(recipe["topology"]["tensor_parallel"])
    (group, *others), mixers = cache.groups, model.architecture.attention
    plain = all(isinstance(mixer, Attention) for mixer in mixers) and model.kv_width in WHOLE_BYTES
    if others or not plain or group.count > 1 or group.window:
        return None
    return int(recipe["memory"]["kv_cache_bytes"]) // cache.block_bytes * group.block_tokens
