"""Time of one step of an engine: bytes and FLOP of its tokens, and the overheads of layers, steps and ranks. Pure.

A step decodes a token of every sequence, or several with a drafter, and may compute a part of a prompt. It reads the
weights that its tokens need and the cache of every sequence. docs/reference/prediction.md has the formula and its
errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import constants as hardware
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.layout import UNQUANTISED, Layout, filled
from vllm_spark.sizing.load import Drafter, Load

# Causes of time in a step.
WEIGHTS, CACHE, LAYERS, ALL_REDUCE, DRAFTS, PROMPT, EAGER = (
    "reading the weights",
    "reading the cache",
    "overhead of the layers",
    "all-reduces between the Sparks",
    "drafting",
    "attention of the prompt",
    "launches without a graph",
)
PARTS = {"mlp": "the MLP", "head": "the output head", "experts": "the experts", "router": "the router"}

# Parts whose tokens go to experts.
ROUTED = "experts"

# Widths of a model between which BF16 matrices of one token are read more and more evenly.
NARROW, WIDE = 2048, 5120

# No kernel but Triton's has larger heads, so the engine takes it for all layers of a model that has them (Gemma 4).
LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True)
class Step:
    """One step: part -> bytes read over all ranks, cause -> seconds, and the tokens of each sequence."""

    read: Mapping[str, float]
    seconds: Mapping[str, float]
    tokens: float = field(default=1.0)

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_s(self) -> float:
        """The speed of each sequence."""
        return self.tokens / self.total_s

    def bound(self) -> str:
        """Return the longest term and its share of the step."""
        cause, longest = max(self.seconds.items(), key=lambda item: item[1])
        if cause != WEIGHTS:
            return f"{cause}, {longest / self.total_s:.0%} of a step"
        weights = {part: size for part, size in self.read.items() if part != CACHE}
        part, size = max(weights.items(), key=lambda item: item[1])
        share = size / sum(weights.values())
        return f"{cause}, {longest / self.total_s:.0%} of a step; {share:.0%} of them is {PARTS.get(part, part)}"


def expert_sets(architecture: Architecture, load: Load, constants: Constants) -> float:
    """Return how many times a step reads the experts of one token. Tokens that use the same expert read it once."""
    experts = architecture.experts
    if experts is None:
        return 0.0
    decoding = (1 + (load.streams - 1) * load.apart) * (1 + load.drafted)
    requests = (decoding if load.streams else 0.0) + load.prompt
    share = min(1.0, experts.per_token / (experts.count * (experts.used or constants.experts_used)))
    unused: float = (1 - share) ** requests
    return (1 - unused) / share


def weight_bytes(architecture: Architecture, layout: Layout, load: Load, constants: Constants) -> dict[str, float]:
    """Return part -> bytes of weights that one step reads. Decoding reads neither the input embedding nor vision."""
    counts = architecture.read_weights()
    read = {part: count * layout.get(part, UNQUANTISED) for part, count in counts.items()}
    read[ROUTED] *= expert_sets(architecture, load, constants) * filled(layout, architecture, load.tensor_parallel)
    return {part: size for part, size in read.items() if size}


def cache_bytes(architecture: Architecture, context: int, kv_width: float, drafted: int = 0) -> float:
    """Return the bytes of cache that one step reads for one sequence: K and V of the tokens in each layer's window.

    A state is read, and written after the token of the step and after each drafted one.
    """
    return sum(
        group.layers * (group.read_bytes(context, kv_width) + group.state() * (1 + drafted))
        for group in architecture.attention
    )


def step(architecture: Architecture, layout: Layout, load: Load, constants: Constants | None = None) -> Step:
    """Return the step that decodes a token of every sequence and computes `load.prompt` tokens of a prompt.

    Without constants they are those of a Spark.
    """
    constants = constants or hardware.constants_of({})
    read = weight_bytes(architecture, layout, load, constants)
    cache = load.streams * cache_bytes(architecture, load.context, load.kv_width, load.drafted)
    triton = any(group.largest_head > LARGEST_HEAD for group in architecture.attention)
    seconds = {
        WEIGHTS: _weights_s(architecture, layout, read, load, constants),
        CACHE: cache / (load.tensor_parallel * constants.bandwidth),
        LAYERS: layers_s(architecture, constants),
    }
    if load.prompt:
        seconds[PROMPT] = _mixing_s(architecture, load, constants, triton) / load.tensor_parallel
    if load.tensor_parallel > 1:
        seconds[ALL_REDUCE] = architecture.reductions * all_reduce_s(architecture, load.tokens, load, constants)
    if load.drafter and load.streams:
        judged = load.streams * load.drafted * architecture.mixers * constants.verify_s
        seconds[DRAFTS] = _drafting_s(architecture, layout, load.drafter, load, constants) + judged
    if load.eager:
        shown = sum(seconds.values())
        seconds[EAGER] = math.hypot(shown, architecture.sublayers * constants.eager_s) - shown
    return Step({**read, CACHE: cache}, seconds, load.drafter.tokens_per_step if load.drafter else 1.0)


def layers_s(architecture: Architecture, constants: Constants) -> float:
    """Return the time of a step that layers take beside their bytes: launches, norms, rotary embedding, routing."""
    convolutions = sum(group.layers for group in architecture.attention if group.kernel == "convolution")
    return (convolutions + architecture.feed_forwards) * constants.feed_forward_s


def all_reduce_s(architecture: Architecture, tokens: int, load: Load, constants: Constants) -> float:
    """Return the time of one all-reduce over the ranks: each sends and receives its part of the others' (a ring).

    NCCL sends few bytes by a protocol that begins at once and takes more than the link's time for each, and many by one
    that begins later.
    """
    ranks = load.tensor_parallel
    sent = tokens * architecture.hidden * UNQUANTISED * 2 * (ranks - 1) / ranks / constants.link
    return constants.all_reduce_s + sent + min(hardware.FEW_BYTES_MORE * sent, constants.many_bytes_s)


def _mixing_s(architecture: Architecture, load: Load, constants: Constants, triton: bool) -> float:
    """Return the time in which one rank alone would mix the tokens of the prompt."""
    rates = {
        "attention": constants.compute_triton if triton else constants.compute_16,
        "delta": constants.compute_delta,
        "mamba": constants.compute_mamba,
        "convolution": constants.compute_mamba,
    }
    groups = architecture.attention
    return sum(group.layers * group.prompt_flop(load.prompt, load.before) / rates[group.kernel] for group in groups)


def _weights_s(
    architecture: Architecture, layout: Layout, read: Mapping[str, float], load: Load, constants: Constants
) -> float:
    """Return the time of the products with the weights: of reading, of computing, or of both where they meet."""
    counts, total = architecture.read_weights(), 0.0
    narrow = min(1.0, max(0.0, (architecture.hidden - NARROW) / (WIDE - NARROW)))
    even = constants.narrow_bf16 + (1 - constants.narrow_bf16) * narrow
    for part, size in read.items():
        width = layout.get(part, UNQUANTISED)
        reading = size / (constants.bandwidth * (even if load.tokens == 1 and width > hardware.BYTE else 1.0))
        # Only the last token of a prompt needs the head.
        tokens = load.decoded + min(1, load.prompt) if part == "head" else load.tokens
        # The grouped product of experts is as fast in 4 bits as in 16.
        rate = constants.compute_experts * constants.compute_16 if part == ROUTED else constants.compute(width, load)
        total += math.hypot(reading, 2 * counts[part] * tokens / rate)
    return total / load.tensor_parallel


def _drafting_s(
    architecture: Architecture, layout: Layout, drafter: Drafter, load: Load, constants: Constants
) -> float:
    """Return the time of the passes that draft: one for each token, or one for all tokens of a block."""
    model = drafter.architecture
    drafting = model.drafting
    size = sum(weight_bytes(model, {}, Load(streams=load.streams), constants).values()) / UNQUANTISED * drafter.width
    if drafting and "head" in drafting.borrows:
        size += architecture.vocabulary * architecture.hidden * layout.get("head", UNQUANTISED)
    one = size / (load.tensor_parallel * constants.bandwidth) + layers_s(model, constants)
    if load.tensor_parallel > 1:
        one += (model.reductions + 1) * constants.all_reduce_s
    return one * (1 if drafting and drafting.block else drafter.tokens)
