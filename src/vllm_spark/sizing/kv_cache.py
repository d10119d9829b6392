"""Division of vLLM's cache among sliding and full layers, and the number of requests that fit. Pure.

Blocks of all layers come from one pool. Layers of one kind form groups of equal size. A block holds as many tokens of
one group as fit its pages (vLLM v1/core/kv_cache_utils.py). A request takes blocks of every group: of a full group for
its whole context, of a sliding group for its window and the tokens of one batch. Therefore a number of tokens has no
single meaning. Up to 0.19 `GPU KV cache size` gives every group the same number of tokens; from 0.20 it is the number
of longest requests times their length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_spark.recipe.architecture import Architecture

# Tokens of a block in the group with the largest page; vLLM's default for attention on CUDA.
BLOCK_TOKENS = 16

# vLLM's default on a Spark if a recipe has no max-num-batched-tokens.
DEFAULT_BATCHED_TOKENS = 2048

# Groups are padded to the larger number of layers if the numbers differ by less than this (vLLM's rule).
NEARLY_EQUAL = 1.25


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of one kind of layer: their number, the tokens per block of one group, and the window (0: full)."""

    count: int
    block_tokens: int
    window: int

    def blocks(self, context: int, batched: int) -> int:
        """Return the most blocks that one request of this length occupies in these groups."""
        if not self.window:
            return self.count * math.ceil(context / self.block_tokens)
        # One more block, because a window may start inside a block.
        tokens = min(self.window - 1 + batched, context)
        return self.count * (math.ceil(tokens / self.block_tokens) + 1)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of one rank. `state_bytes` is the state of the linear layers for each sequence."""

    block_bytes: int
    groups: tuple[Group, ...]
    state_bytes: int = 0

    def request_bytes(self, context: int, batched: int) -> int:
        """Return the most bytes that one request of this length occupies."""
        return self.block_bytes * sum(group.blocks(context, batched) for group in self.groups) + self.state_bytes

    def requests(self, room: float, context: int, batched: int) -> float:
        """Return the number of requests of this length in `room` bytes: vLLM's `Maximum concurrency`."""
        return max(0.0, room) / self.request_bytes(context, batched)

    def logged_tokens(self, room: float, context: int, batched: int, before_0_20: bool) -> int:
        """Return the `GPU KV cache size` that vLLM logs for a max-model-len of `context`."""
        blocks = int(room) // self.block_bytes
        if before_0_20:
            return blocks // sum(group.count for group in self.groups) * min(g.block_tokens for g in self.groups)
        return int(self.requests(blocks * self.block_bytes, context, batched) * context)


def of(architecture: Architecture, kv_width: float, tensor_parallel: int = 1) -> Cache:
    """Return the cache of one rank of a model. `kv_width` is in bytes per number."""
    caching = [group for group in architecture.attention if group.token_bytes(kv_width)]
    states = sum(group.layers * group.state() for group in architecture.attention) // tensor_parallel
    if not caching:
        return Cache(block_bytes=1, groups=(), state_bytes=states)
    counts = [group.layers for group in caching]
    size = max(counts) if max(counts) < NEARLY_EQUAL * min(counts) else min(counts)
    token_bytes = {group: group.token_bytes(kv_width, tensor_parallel) for group in caching}
    largest = max(token_bytes.values())
    return Cache(
        block_bytes=int(size * largest * BLOCK_TOKENS),
        groups=tuple(
            Group(math.ceil(group.layers / size), int(BLOCK_TOKENS * largest / token_bytes[group]), group.window)
            for group in caching
        ),
        state_bytes=states,
    )
