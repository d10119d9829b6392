"""Division of vLLM's cache among sliding, full and state layers, and the number of requests that fit. Pure.

Blocks of all layers come from one pool. Layers that keep the same of each token form groups of equal size. A block
holds as many tokens of one group as fit its pages (vLLM v1/core/kv_cache_utils.py). A request takes blocks of every
group: of a full group for its whole context, of a sliding group for its window and the tokens of one batch, of a group
of states a few for each sequence. A page is at least as large as a state, so with states a block holds 1,568 tokens and
more (platforms/interface.py). Therefore a number of tokens has no single meaning. Up to 0.20.0 `GPU KV cache size`
gives every group the same number of tokens; later it is the number of longest requests times their length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.recipe.mixer import Mixer

# Tokens of a block in the group with the largest page; vLLM's default for attention on CUDA. Larger blocks are a
# multiple of it.
BLOCK_TOKENS = 16

# Groups are padded to the larger number of layers if the numbers differ by less than this (vLLM's rule).
NEARLY_EQUAL = 1.25

# States that a sequence keeps: the newest, and with prefix caching the one before it. Each drafted token adds one.
NEWEST, WITH_PREFIX_CACHING = 1, 2


@dataclass(frozen=True, slots=True)
class Use:
    """How an engine uses its cache.

    `drafter` keeps a cache of its own layers. With `drafted` tokens a sequence keeps more states, and with
    `prefix_caching` one more.
    """

    drafter: Architecture | None = None
    drafted: int = 0
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of one kind of layer: their number, the tokens per block of one group, and the window (0: full).

    A group of states takes `states` blocks for each sequence and holds no tokens.
    """

    count: int
    block_tokens: int
    window: int
    states: int = field(default=0)

    def blocks(self, context: int, batched: int) -> int:
        """Return the most blocks that one request of this length occupies in these groups."""
        if self.states:
            return self.count * self.states
        if not self.window:
            return self.count * math.ceil(context / self.block_tokens)
        # One more block, because a window may start inside a block.
        tokens = min(self.window - 1 + batched, context)
        return self.count * (math.ceil(tokens / self.block_tokens) + 1)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of one rank."""

    block_bytes: int
    groups: tuple[Group, ...]

    def request_bytes(self, context: int, batched: int) -> int:
        """Return the most bytes that one request of this length occupies."""
        return self.block_bytes * sum(group.blocks(context, batched) for group in self.groups)


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers that keep the same: their number, the bytes of a token or of a state in one of them, and the window."""

    layers: int
    token_bytes: float
    state_bytes: int
    window: int


def of(architecture: Architecture, kv_width: float, tensor_parallel: int = 1, use: Use | None = None) -> Cache:
    """Return the cache of one rank of a model. `kv_width` is in bytes per number."""
    use = use or Use()
    drafting = use.drafter.attention if use.drafter else ()
    kinds = _kinds((*architecture.attention, *drafting), kv_width, tensor_parallel, use.drafted)
    tokens = [kind for kind in kinds if kind.token_bytes]
    state = max((kind.state_bytes for kind in kinds), default=0)
    if not tokens:
        return Cache(max(1, state), (Group(sum(kind.layers for kind in kinds), 1, 0, _states(use)),))
    counts = [kind.layers for kind in kinds]
    size = max(counts) if max(counts) < NEARLY_EQUAL * min(counts) else min(counts)
    # The engine chooses the block by the model's own full layers, so that a page holds a state.
    block_tokens = max(1, math.ceil(state / (BLOCK_TOKENS * tokens[0].token_bytes))) * BLOCK_TOKENS
    page = block_tokens * max(kind.token_bytes for kind in tokens)
    return Cache(
        block_bytes=int(size * page),
        groups=tuple(
            Group(
                count=math.ceil(kind.layers / size),
                block_tokens=int(page / kind.token_bytes) if kind.token_bytes else 0,
                window=kind.window,
                states=0 if kind.token_bytes else _states(use),
            )
            for kind in kinds
        ),
    )


def _states(use: Use) -> int:
    return (WITH_PREFIX_CACHING if use.prefix_caching else NEWEST) + use.drafted


def _kinds(mixers: Sequence[Mixer], kv_width: float, tensor_parallel: int, drafted: int) -> list[_Layers]:
    """Return the kinds of layers with a cache or a state. A drafter's layers join those of the model that are alike."""
    found: dict[tuple[object, ...], _Layers] = {}
    for mixer in mixers:
        token, state = mixer.token_bytes(kv_width, tensor_parallel), mixer.state(drafted) // tensor_parallel
        if token or state:
            known = found.get((mixer.cached, state))
            layers = mixer.layers + (known.layers if known else 0)
            found[(mixer.cached, state)] = _Layers(layers, token, state, mixer.window)
    return list(found.values())
