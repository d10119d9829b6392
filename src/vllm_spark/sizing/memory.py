"""Memory of a start: what a rank needs of the Spark's unified memory, against what is available now.

The engine reserves utilization x total at once and refuses to start if less is free (vLLM v1/worker/utils.py,
request_memory). "Free" on a Spark is MemAvailable, so the memory of other processes on the host counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Document, MemoryFacts
from vllm_spark.core.units import GIB, gib
from vllm_spark.inventory import rank_group
from vllm_spark.node.engine_api import CHAT
from vllm_spark.recipe import architecture, flag_names, flag_types, host_memory, roles, rules
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.recipe.host_memory import Taken
from vllm_spark.sizing import kv_cache, layout, recipe_engine
from vllm_spark.sizing.layout import Layout

TOO_LITTLE_MEMORY = register("too-little-memory", runbook="too-little-memory")

# The host itself needs this much: a desktop, sshd and the page cache of the weights.
DEFAULT_FLOOR_BYTES = 8 * GIB

# From this share on the engine took the memory of the desktop (field report 000; recipes/compatibility.yml).
LARGEST_SHARE = 0.80

# Allowance for activations, CUDA graphs and everything else that is neither weights nor cache: what the engine keeps of
# its share after a step of the most tokens. Three public logs of one 27B on a GB10 kept 9.26, 12.37 and 18.40 GiB at
# 16,384, 32,768 and 65,536 tokens. Field reports 001 and 002 left 5.9 GiB at 2,048, and most of 30 public starts less
# than the allowance (lab/forecast/measured/unmet/workspace.yaml).
WORKSPACE_BYTES, WORKSPACE_TOKEN_BYTES = int(6.2 * GIB), 0.19 * GIB / 1024
# With a cache of fixed size the engine keeps nothing: this is what a server takes.
WORKSPACE_IN_USE_BYTES = 6 * GIB

# The key of `memory` by which a plan says what the engine of a shared Spark takes beside weights and cache (budget.py).
WORKSPACE_KEY = "workspace_bytes"

# What public starts on a GB10 needed at their peak above the ready server, at the most: 46.6 GiB against 27.4, Gemma 4
# 31B in W4A16 on vLLM 0.30.0 (`loading` of lab/forecast/measured_memory.yml). Others needed 0 to 13.5.
LOADING_MORE_BYTES = int(19.2 * GIB)

# max-lora-rank without the flag (vLLM config/lora.py).
LORA_RANK = 16
# Parts of the weights that no layer has.
NOT_IN_LAYERS = ("head", "embedding", "vision", "tables", "drafter")


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The weights that a recipe loads: the model, its drafter, and the bytes per weight of each part.

    `kv_width` is in bytes per number of the cache. `drafter_bytes` is the size of a drafter without an architecture
    file, `drafted` its number of tokens.
    """

    architecture: Architecture
    layout: Layout
    kv_width: float
    vision: bool = True
    drafter: Architecture | None = None
    drafter_bytes: int = 0
    drafted: int = 0
    prefix_caching: bool = True
    moe_backend: str = "marlin"

    def loaded_bytes(self, tensor_parallel: int) -> dict[str, int]:
        """Return part -> bytes on each rank after loading. Every rank has the whole rotary tables."""
        sizes = {
            part: int(count * self.layout.get(part, layout.UNQUANTISED) / tensor_parallel)
            for part, count in self.architecture.weights().items()
            if count and (self.vision or part != "vision")
        }
        if "experts" in sizes:
            filled = layout.filled(self.layout, self.architecture, tensor_parallel, self.moe_backend)
            sizes["experts"] = int(sizes["experts"] * filled)
        sizes["tables"] = self.architecture.table_bytes()
        width = self.layout.get("drafter", layout.UNQUANTISED)
        drafter = sum(self.drafter.weights().values()) * width if self.drafter else self.drafter_bytes
        if drafter:
            sizes["drafter"] = int(drafter / tensor_parallel)
        return sizes

    def stage_bytes(self, tensor_parallel: int, stages: int, stage: int) -> int:
        """Return the weights of a rank of one stage of a pipeline: the layers of the largest one, and the parts of the
        ends."""
        ends = {"embedding": 0, "vision": 0, "head": stages - 1}
        layers = -(-self.architecture.layers // stages) / self.architecture.layers
        return sum(
            int(size * layers) if part not in NOT_IN_LAYERS else size
            for part, size in self.loaded_bytes(tensor_parallel).items()
            if ends.get(part, stage) == stage
        )

    def cache(self, tensor_parallel: int) -> kv_cache.Cache:
        """Return the cache of one rank, with that of the drafter's own layers."""
        use = kv_cache.Use(self.drafter, self.drafted, self.prefix_caching)
        return kv_cache.of(self.architecture, self.kv_width, tensor_parallel, use)


def model_of(recipe: Document) -> MemoryModel | None:
    """Return what a recipe loads, or None if it names no architecture or no layout.

    Raises RefusedError for an architecture that has no file in recipes/architectures.
    """
    model, drafter = recipe["model"], recipe.get("drafter", {})
    if not {"architecture", "layout"} <= set(model):
        return None
    return MemoryModel(
        architecture=architecture.of_recipe(recipe, model["architecture"]),
        layout=layout.widths(model["layout"]),
        kv_width=kv_width(recipe),
        vision=loads_towers(recipe["args"]),
        drafter=architecture.of_recipe(recipe, drafter["architecture"]) if "architecture" in drafter else None,
        drafter_bytes=drafter.get("size_bytes", 0),
        drafted=drafter.get("speculative_tokens", 0),
        prefix_caching=recipe["args"].get("enable-prefix-caching", True) is not False,
        moe_backend=str(recipe["args"].get("moe-backend", "marlin")).replace("-", "_").lower(),
    )


def is_encoder(recipe: Document) -> bool:
    """Return True for a server without a cache: of another role than a chat, with neither an architecture nor a cache
    in bytes. The recipe of a decoder has one of them."""
    known = "architecture" in recipe["model"] or "kv_cache_bytes" in recipe["memory"]
    return roles.of(recipe) != CHAT and not known


def loads_towers(args: Document) -> bool:
    """Return False if a model loads no tower for images: also with a limit of 0 of its modalities (vLLM
    model_executor/models/interfaces.py, _mark_tower_model)."""
    if args.get("language-model-only", False):
        return False
    limits = flag_types.parsed(args.get("limit-mm-per-prompt"))
    return not (isinstance(limits, dict) and limits.get("image") == 0 == limits.get("video"))


def kv_width(recipe: Document) -> float:
    """Return the bytes of a number in the cache.

    With `auto` the engine uses what a ModelOpt checkpoint requests, which is FP8 for NVFP4, and otherwise BF16.
    """
    name = str(recipe["args"].get("kv-cache-dtype", "auto"))
    if name == "auto":
        model = recipe["model"]
        quantised = "nvfp4" in layout.names(model.get("checkpoint", model.get("layout", {})))
        return layout.WIDTHS["fp8" if quantised else "bf16"]
    known = {"fp8": "fp8", "int8": "fp8", "nvfp4": "nvfp4"}
    return layout.WIDTHS[next((width for start, width in known.items() if name.startswith(start)), "bf16")]


def file_bytes(recipe: Document) -> int:
    """Return the size of the model's files: the recipe's figure, else computed from its layout, else 0."""
    model = recipe["model"]
    names = model.get("checkpoint", model.get("layout"))
    if "size_bytes" in model or names is None or "architecture" not in model:
        return int(model.get("size_bytes", 0))
    known = layout.widths(names)
    filed = architecture.of_recipe(recipe, model["architecture"]).stored_weights()
    return int(sum(count * known.get(part, layout.UNQUANTISED) for part, count in filed.items()))


def loading_peak_bytes(recipe: Document) -> int:
    """Return the peak of loading on each rank, or 0 if loading needs no more than the weights.

    The recipe's measured figure counts first. If loading changes the weights (`checkpoint`), the files are in memory at
    their own width before they are quantised (field report 003).
    """
    measured = recipe["memory"].get("loading_peak_bytes")
    if measured is not None or "checkpoint" not in recipe["model"]:
        return int(measured or 0)
    return int(file_bytes(recipe) / recipe["topology"]["nodes"])


def needed_bytes(recipe: Document, total_bytes: int) -> int:
    """Return the peak of a start on one Spark: what the server takes once it is ready, or the loading peak."""
    ready = reserved_bytes(recipe, total_bytes) + sum(part.bytes for part in beside(recipe))
    return max(ready, loading_peak_bytes(recipe))


def reserved_bytes(recipe: Document, total_bytes: int) -> int:
    """Return what the engine reserves: its share of the total, or weights and cache if the cache has a fixed size."""
    budget = recipe["memory"]
    if "kv_cache_bytes" not in budget:
        return int(budget.get("utilization", 0) * total_bytes)
    model, parts = model_of(recipe), taken_parts(recipe)
    inside = sum(part.bytes for part in parts if part.inside)
    return int(held_bytes(recipe, model, parts) + workspace_bytes(recipe) + inside + budget["kv_cache_bytes"])


def held_bytes(recipe: Document, model: MemoryModel | None, parts: Sequence[Taken]) -> int:
    """Return the weights in the engine's own memory, without those that flags move to the host's; of a pipeline, those
    of its fullest stage."""
    tensor_parallel, stages = recipe["topology"]["tensor_parallel"], rules.stages_of(recipe)
    weights = (
        max(model.stage_bytes(tensor_parallel, stages, stage) for stage in range(stages))
        if model
        else file_bytes(recipe) // recipe["topology"]["nodes"]
    )
    return max(0, weights - sum(part.bytes for part in parts if part.weights))


def rank_bytes(recipe: Document) -> int:
    """Return the weights of one rank in the engine's own memory; 0 if their size is not known."""
    return held_bytes(recipe, model_of(recipe), taken_parts(recipe))


def weights_alone(recipe: Document, memory: MemoryFacts) -> Iterator[str]:
    """Yield what is known of the memory of a recipe that names no architecture: its weights, and what they leave."""
    weights, reserved = rank_bytes(recipe), reserved_bytes(recipe, memory["total"])
    if weights and is_encoder(recipe):
        asked = f"the engine asks for {gib(reserved)} at its start"
        yield f"weights take {gib(weights)}, and an encoder has no cache; {asked}"
    elif weights and reserved > weights:
        yield (
            f"weights take {gib(weights)} a rank of the {gib(reserved)} that the engine reserves, which leaves "
            f"{gib(reserved - weights)} for cache and workspace; whether that is enough is not known"
        )


def taken_parts(recipe: Document) -> list[Taken]:
    """Return what flags and processes take of one Spark's memory. Weights on the host are no more than there are."""
    model = model_of(recipe)
    parts = host_memory.taken(recipe, _sizes(recipe, model), vision=_has_tower(recipe, model))
    most = held_bytes(recipe, model, ())
    return [replace(part, bytes=min(part.bytes, most)) if part.weights else part for part in parts]


def beside(recipe: Document) -> list[Taken]:
    """Return what a server takes beside the reservation. A cache of fixed size has the base in its workspace."""
    fixed = "kv_cache_bytes" in recipe["memory"]
    return [part for part in taken_parts(recipe) if not (part.inside or part.disk or (fixed and part.base))]


def unknown_parts(recipe: Document) -> list[str]:
    """Return what a server takes of the host's memory whose amount is not known."""
    model = model_of(recipe)
    return host_memory.unknown(recipe, _sizes(recipe, model), vision=_has_tower(recipe, model))


def _has_tower(recipe: Document, model: MemoryModel | None) -> bool:
    """Return True if images reach the model. Without an architecture its gates tell."""
    return loads_towers(recipe["args"]) and bool(model.architecture.vision if model else "vision" in recipe["gates"])


def _sizes(recipe: Document, model: MemoryModel | None) -> dict[str, float]:
    """Return the units of host_memory.yml that a recipe decides, in bytes."""
    sizes: dict[str, float] = {"object store": rank_group.RAY_OBJECT_STORE_BYTES}
    if model:
        rank = flag_names.positive_number(recipe["args"], "max-lora-rank") or LORA_RANK
        sizes["LoRA adapter"] = rank * model.architecture.adapter_weights() * layout.UNQUANTISED
        loaded = model.loaded_bytes(recipe["topology"]["tensor_parallel"])
        group = flag_names.positive_number(recipe["args"], "offload-group-size") or 1
        sizes["layer group"] = sum(size for part, size in loaded.items() if part not in NOT_IN_LAYERS) / group
    return sizes


def requirement(recipe: Document) -> dict[str, float | int]:
    """Return the memory that must be available before a start, for a Spark of any size: `floor_bytes`, and the larger
    of `bytes` and `share` of its memory with `beside_bytes`.

    With a cache of fixed size `share` is only what the engine asks for at its start (vLLM v1/worker/utils.py,
    request_memory): nothing of it is taken, so the host's floor may be a part of it.
    """
    floor = floor_bytes(recipe)
    beside_bytes, fixed = sum(part.bytes for part in beside(recipe)), loading_peak_bytes(recipe)
    if "kv_cache_bytes" in recipe["memory"]:
        # The processes run before the engine asks.
        base = sum(part.bytes for part in taken_parts(recipe) if part.base)
        beside_bytes, fixed = base - floor, needed_bytes(recipe, 0)
    return {
        "share": host_memory.utilization(recipe),
        "beside_bytes": beside_bytes,
        "bytes": fixed,
        "floor_bytes": floor,
    }


def required_bytes(recipe: Document, total_bytes: int) -> int:
    """Return what must be available before a start on a Spark of this size."""
    room = requirement(recipe)
    return int(max(room["share"] * total_bytes + room["beside_bytes"], room["bytes"]) + room["floor_bytes"])


def workspace_bytes(recipe: Document) -> int:
    """Return the allowance beside weights and cache. It is 0 if the recipe has a measured loading peak. On a shared
    Spark it is the budget's."""
    if WORKSPACE_KEY in recipe["memory"]:
        return int(recipe["memory"][WORKSPACE_KEY])
    if "loading_peak_bytes" in recipe["memory"]:
        return 0
    if "kv_cache_bytes" in recipe["memory"]:
        return WORKSPACE_IN_USE_BYTES
    return WORKSPACE_BYTES + int(recipe_engine.batched_tokens(recipe) * WORKSPACE_TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Fit:
    """Division of one Spark's memory, in bytes.

    `request` is the cache of one request of `context` tokens. `room` is the cache of all requests; below 0 it is
    missing.
    """

    total: int
    available: int
    floor: int
    reserved: int
    peak: int
    weights: int
    workspace: int
    room: int
    request: int
    context: int
    # What flags and processes take: of the reservation (`inside`), and beside it.
    parts: Sequence[Taken] = ()
    # What the engine asks for at its start without taking it; 0 if it takes its share.
    asked: int = 0

    @property
    def beside(self) -> int:
        """The memory that the server takes beside the reservation."""
        return sum(part.bytes for part in self.parts if not part.inside)

    @property
    def requests(self) -> float:
        """The number of such requests that the cache can hold at once."""
        return max(0, self.room) / self.request


def fit(recipe: Document, model: MemoryModel, memory: MemoryFacts, context: int, measured_peak: int = 0) -> Fit:
    """Return the division of one Spark's memory for one rank. It is arithmetic only and refuses nothing.

    `measured_peak` is the peak of a start on the owner's Sparks in bytes; 0 is not known.
    """
    reserved = reserved_bytes(recipe, memory["total"])
    taken = taken_parts(recipe)
    weights, workspace = held_bytes(recipe, model, taken), workspace_bytes(recipe)
    inside = [part for part in taken if part.inside]
    return Fit(
        total=memory["total"],
        available=memory["available"],
        floor=floor_bytes(recipe),
        reserved=reserved,
        peak=measured_peak or loading_peak_bytes(recipe),
        weights=weights,
        workspace=workspace,
        room=recipe["memory"].get(
            "kv_cache_bytes", reserved - weights - workspace - sum(part.bytes for part in inside)
        ),
        request=request_bytes(recipe, model, context),
        context=context,
        parts=[*inside, *beside(recipe)],
        asked=int(host_memory.utilization(recipe) * memory["total"]) if "kv_cache_bytes" in recipe["memory"] else 0,
    )


def request_bytes(recipe: Document, model: MemoryModel, tokens: int) -> int:
    """Return the cache of one request of so many tokens on a rank. One of a pipeline holds that of its own layers."""
    cache = model.cache(recipe["topology"]["tensor_parallel"])
    return max(1, cache.request_bytes(tokens, recipe_engine.batched_tokens(recipe)) // rules.stages_of(recipe))


def floor_bytes(recipe: Document) -> int:
    """Return the memory that must stay free for the host itself."""
    return int(recipe["memory"].get("free_floor_bytes", DEFAULT_FLOOR_BYTES))


def budget_key(recipe: Document) -> str:
    """Return the key of `memory` that decides the size of the cache. The engine ignores the other one."""
    return "kv_cache_bytes" if "kv_cache_bytes" in recipe["memory"] else "utilization"


def _fix_of_start(recipe: Document, total_bytes: int, missing: int, *, reference: bool) -> str:
    """Return what lets a start fit that misses so many bytes. `reference`: nothing uses the Spark that could stop."""
    stop = "stop what uses it (`ps axo rss,comm --sort -rss | head`)"
    if loading_peak_bytes(recipe) >= needed_bytes(recipe, total_bytes):
        first = "a recipe with smaller weights (`vllm-spark recipes`)" if reference else stop
        return f"{first}; the peak of loading does not depend on overrides.memory."
    large = [part for part in beside(recipe) if part.stated and part.bytes >= missing]
    setting = large[0].setting if large else f"memory.{budget_key(recipe)}"
    lower = f"lower overrides.{setting}."
    share = math.floor((recipe["memory"].get("utilization", 0) * total_bytes - missing) / total_bytes * 100) / 100
    if setting == "memory.utilization" and 0 < share < LARGEST_SHARE:
        lower = f"overrides.memory.utilization: {share:.2f}."
    return lower if reference else f"{stop}, or {lower}"


def too_little_refusal(
    name: str, host: str, recipe: Document, memory: MemoryFacts, *, reference: bool = False
) -> Iterator[Refusal]:
    """Refuse a start that needs more than is available now. `reference`: `host` stands for an idle Spark."""
    total, available, floor = memory["total"], memory["available"], floor_bytes(recipe)
    needed_now, required = needed_bytes(recipe, total), required_bytes(recipe, total)
    has = f"{host} has {gib(available)} available of {gib(total)}"
    if needed_now + floor > available:
        flags = [f"{gib(part.bytes)} of {part.what}" for part in beside(recipe) if part.stated]
        with_flags = f" with {', '.join(flags)}" if flags else ""
        yield TOO_LITTLE_MEMORY(
            what=f"{has}; {name} needs {gib(needed_now)}{with_flags}, and {gib(floor)} must stay free for the host",
            expected=f"{gib(needed_now + floor)} available",
            fix=_fix_of_start(recipe, total, needed_now + floor - available, reference=reference),
        )
    elif required > available:
        share = math.ceil(needed_now / total * 100) / 100
        yield TOO_LITTLE_MEMORY(
            what=f"{has}; {name} needs {gib(needed_now)} with its memory.kv_cache_bytes, and its engine ends at the "
            f"start unless {host_memory.utilization(recipe):.2f} of the memory is free beside its processes",
            expected=f"{gib(required)} available",
            fix=f"overrides.memory.utilization: {share:.2f}, of which the engine takes nothing beside kv_cache_bytes.",
        )
