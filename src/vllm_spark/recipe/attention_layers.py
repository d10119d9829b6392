"""Layers of attention with a cache of K and V, or of their latent. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_spark.recipe.mixer import Mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Mixer):
    """Attention with K and V of each token.

    - sliding: the cache is limited to `window` tokens
    - full: the cache grows with the context
    - borrowed: a drafter's layers that read the cache of its model
    """

    heads: int
    head_size: int
    kv_heads: int = 0
    # The files have no v_proj, because V equals K. vLLM loads K's weights into both places and reads both.
    values_are_keys: bool = False
    # q_proj has a second half, the output gate.
    gated: bool = False
    # The layers read the cache of an earlier layer and keep none. The engine has their K and V weights all the same.
    shared_kv: bool = False
    # The input is wider than the model: 2 for EAGLE, whose first layer reads the token beside the model's own state.
    inputs: int = 1

    @property
    def rotary_size(self) -> int:
        return self.head_size if self.kv_heads else 0

    @property
    def largest_head(self) -> int:
        return self.head_size

    @property
    def cached(self) -> tuple[int, ...]:
        return (self.window, self.kv_heads, self.head_size)

    def loaded_weights(self, hidden: int) -> int:
        queries = self.heads * self.head_size
        width = hidden * self.inputs
        return (
            width * queries * (2 if self.gated else 1) + queries * hidden + 2 * width * self.kv_heads * self.head_size
        )

    def copied_weights(self, hidden: int) -> int:
        return hidden * self.kv_heads * self.head_size if self.values_are_keys else 0

    def token_bytes(self, kv_width: float, tensor_parallel: int = 1) -> float:
        """Return the bytes of K and V. A rank has at least one head."""
        return 0.0 if self.shared_kv else self._pair(kv_width, tensor_parallel)

    def read_bytes(self, context: int, kv_width: float) -> float:
        tokens = min(context, self.window) if self.window else context
        return self._pair(kv_width, 1) * tokens

    def prompt_flop(self, tokens: int, before: int) -> float:
        return 4.0 * self.heads * self.head_size * self._attended(tokens, before)

    def _pair(self, kv_width: float, tensor_parallel: int) -> float:
        heads = max(1, self.kv_heads // tensor_parallel) if self.kv_heads else 0
        return 2 * heads * self.head_size * kv_width


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Mixer):
    """MLA: K and V of a token are one latent of `kv_rank` numbers and a rotary part, which every rank keeps whole.

    `query_rank` is 0 if the queries have no latent. With an index (DeepSeek's sparse attention) a layer reads at most
    `index_tokens` tokens, and a key of `index_size` numbers of every token.
    """

    heads: int
    kv_rank: int
    rotary: int
    unrotated: int
    value_size: int
    query_rank: int = 0
    index_heads: int = 0
    index_size: int = 0
    index_tokens: int = 0

    @property
    def rotary_size(self) -> int:
        return self.rotary

    @property
    def cached(self) -> tuple[int, ...]:
        return (self.window, self.kv_rank, self.rotary, self.index_size)

    def loaded_weights(self, hidden: int) -> int:
        queries = self.heads * (self.unrotated + self.rotary)
        query = hidden * self.query_rank + self.query_rank * queries if self.query_rank else hidden * queries
        latent = hidden * (self.kv_rank + self.rotary) + self.kv_rank * self.heads * (self.unrotated + self.value_size)
        index = (self.query_rank or hidden) * self.index_heads * self.index_size
        index += hidden * (self.index_size + self.index_heads) if self.index_heads else 0
        return query + latent + self.heads * self.value_size * hidden + index

    def token_bytes(self, kv_width: float, tensor_parallel: int = 1) -> float:
        """Return the bytes of the latent and of the index's key, which is FP8."""
        return (self.kv_rank + self.rotary) * kv_width + self.index_size

    def read_bytes(self, context: int, kv_width: float) -> float:
        tokens = min(context, self.index_tokens) if self.index_tokens else context
        return (self.kv_rank + self.rotary) * kv_width * tokens + self.index_size * context

    def prompt_flop(self, tokens: int, before: int) -> float:
        size = self.rotary + self.unrotated + self.value_size
        pairs = self._attended(tokens, before)
        return 2.0 * self.heads * size * (min(pairs, tokens * self.index_tokens) if self.index_tokens else pairs)
