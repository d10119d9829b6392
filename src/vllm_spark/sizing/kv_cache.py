"""How vLLM divides its cache among sliding and full layers, and so how many requests fit. Pure.

Blocks of all layers come from one pool. Layers of one kind form groups of equal size; a block holds as many tokens
for one group as fit its pages (vLLM v1/core/kv_cache_utils.py). A request takes blocks of every group: of a full
one for its whole context, of a sliding one for its window and the tokens of one batch. So a figure of tokens has no
one meaning, and the two that vLLM logs differ: up to 0.19 `GPU KV cache size` gives every group the same tokens,
from 0.20 it is the number of longest requests times their length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_spark.recipe.architecture import Architecture, Attention

# Tokens of a block where a page is largest; vLLM's own for attention on CUDA.
BLOCK_TOKENS = 16

# vLLM on a Spark, where a recipe has no max-num-batched-tokens.
DEFAULT_BATCHED_TOKENS = 2048

# Groups are padded to the larger number of layers where the two differ by less (vLLM's own rule).
NEARLY_EQUAL = 1.25


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of one kind of layer: how many, and the tokens that one block holds for one of them."""

    count: int
    block_tokens: int
    window: int

    def blocks(self, context: int, batched: int) -> int:
        """Blocks that one request of this length holds at most in these groups."""
        if not self.window:
            return self.count * math.ceil(context / self.block_tokens)
        # One block more, because a window need not begin where a block does.
        held = min(self.window - 1 + batched, context)
        return self.count * (math.ceil(held / self.block_tokens) + 1)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of one rank. Bytes are per block; `state_bytes` is what linear layers keep for each sequence."""

    block_bytes: int
    groups: tuple[Group, ...]
    state_bytes: int = 0

    def request_bytes(self, context: int, batched: int) -> int:
        """What one request of this length holds at most."""
        return self.block_bytes * sum(group.blocks(context, batched) for group in self.groups) + self.state_bytes

    def requests(self, room: float, context: int, batched: int) -> float:
        """How many requests of this length `room` bytes hold: vLLM's `Maximum concurrency`."""
        return max(0.0, room) / self.request_bytes(context, batched)

    def logged_tokens(self, room: float, context: int, batched: int, before_0_20: bool) -> int:
        """What vLLM logs as `GPU KV cache size` for a max-model-len of `context`."""
        blocks = int(room) // self.block_bytes
        if before_0_20:
            return blocks // sum(group.count for group in self.groups) * min(g.block_tokens for g in self.groups)
        return int(self.requests(blocks * self.block_bytes, context, batched) * context)


def of(architecture: Architecture, kv_width: float, tensor_parallel: int = 1) -> Cache:
    """The cache of one rank of a model. `kv_width` is in bytes per number."""
    caching = [group for group in architecture.attention if group.kv_heads]
    counts = [group.layers for group in caching]
    size = max(counts) if max(counts) < NEARLY_EQUAL * min(counts) else min(counts)
    token_bytes = {group: _token_bytes(group, kv_width, tensor_parallel) for group in caching}
    largest = max(token_bytes.values())
    return Cache(
        block_bytes=int(size * largest * BLOCK_TOKENS),
        groups=tuple(
            Group(math.ceil(group.layers / size), int(BLOCK_TOKENS * largest / token_bytes[group]), group.window)
            for group in caching
        ),
        state_bytes=sum(group.layers * group.state_bytes for group in architecture.attention) // tensor_parallel,
    )


def _token_bytes(group: Attention, kv_width: float, tensor_parallel: int) -> float:
    """K and V of one token in one layer of one rank. A head is not divided: with fewer heads than ranks, each has
    one."""
    return 2 * max(1, group.kv_heads // tensor_parallel) * group.head_size * kv_width
