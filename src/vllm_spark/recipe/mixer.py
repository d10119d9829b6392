"""The interface of the layers that mix tokens: their weights, cache and state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """`layers` layers of one kind. `part` is the part of a layout that has its width.

    `kernel` is what computes them, and so the constants of the forecast: attention, delta, mamba or convolution.
    """

    part: ClassVar[str] = "attention"
    kernel: ClassVar[str] = "attention"

    kind: str
    layers: int
    # The tokens that a layer keeps; 0 is all of them.
    window: int = 0

    def state(self, drafted: int = 0) -> int:
        """Return the bytes of one layer's state for each sequence. Drafted tokens lengthen its convolution."""
        return 0

    @property
    def cached(self) -> tuple[int, ...]:
        """What a layer keeps of each token, in numbers. Layers that keep the same share blocks of the cache."""
        return (self.window,)

    @property
    def rotary_size(self) -> int:
        """The size of a head whose angles are in a table; 0 if the layer has no cache of its own."""
        return 0

    @property
    def largest_head(self) -> int:
        """The size of a head of K and V; 0 for layers that have none."""
        return 0

    def loaded_weights(self, hidden: int) -> int:
        """Return the weights of one layer in the engine's memory."""
        raise NotImplementedError

    def copied_weights(self, hidden: int) -> int:
        """Return the weights of one layer that the engine copies and the files do not contain."""
        return 0

    def token_bytes(self, kv_width: float, tensor_parallel: int = 1) -> float:
        """Return the bytes that one rank keeps of one token in one layer."""
        return 0.0

    def read_bytes(self, context: int, kv_width: float) -> float:
        """Return the bytes of cache and state that one step reads in one layer for one sequence, over all ranks."""
        tokens = min(context, self.window) if self.window else context
        return self.token_bytes(kv_width) * tokens + self.state()

    def prompt_flop(self, tokens: int, before: int) -> float:
        """Return the FLOP that mixing takes for `tokens` of a prompt in one layer, after `before` tokens of it."""
        return 2.0 * tokens * self.state()

    def _attended(self, tokens: int, before: int) -> float:
        """Return the pairs of tokens: each token attends to those before it, at most to the window."""
        mean = before + tokens / 2
        return tokens * (min(mean, self.window) if self.window else mean)
