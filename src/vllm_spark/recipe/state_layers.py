"""Layers with a state of fixed size for each sequence instead of a cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vllm_spark.recipe.mixer import Mixer

# Bytes of a number of a state: the recurrent part is FP32 unless config.json says otherwise, the convolution BF16.
STATE_WIDTH, CONVOLUTION_WIDTH = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMixer(Mixer):
    """A layer with a state of fixed size and no cache, whose dimensions no other kind describes."""

    part: ClassVar[str] = "linear"
    kernel: ClassVar[str] = "convolution"

    parameters: int
    state_bytes: int

    def state(self, drafted: int = 0) -> int:
        return self.state_bytes

    def loaded_weights(self, hidden: int) -> int:
        return self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta(Mixer):
    """Gated delta rule (Qwen3-Next and later): a matrix of key_size x value_size for each value head."""

    part: ClassVar[str] = "linear"
    kernel: ClassVar[str] = "delta"

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
    convolution: int
    state_width: int = STATE_WIDTH

    @property
    def _channels(self) -> int:
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    def state(self, drafted: int = 0) -> int:
        matrices = self.value_heads * self.key_size * self.value_size * self.state_width
        return matrices + self._channels * (self.convolution - 1 + drafted) * CONVOLUTION_WIDTH

    def loaded_weights(self, hidden: int) -> int:
        values = self.value_heads * self.value_size
        projected = hidden * (self._channels + values + 2 * self.value_heads) + values * hidden
        return projected + self._channels * self.convolution + self.value_size + 2 * self.value_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(Mixer):
    """Mamba-2: a state of head_size x state_size for each head; B and C belong to `groups` groups."""

    part: ClassVar[str] = "linear"
    kernel: ClassVar[str] = "mamba"

    heads: int
    head_size: int
    groups: int
    state_size: int
    convolution: int
    state_width: int = STATE_WIDTH

    @property
    def _channels(self) -> int:
        return self.heads * self.head_size + 2 * self.groups * self.state_size

    def state(self, drafted: int = 0) -> int:
        matrices = self.heads * self.head_size * self.state_size * self.state_width
        return matrices + self._channels * (self.convolution - 1 + drafted) * CONVOLUTION_WIDTH

    def loaded_weights(self, hidden: int) -> int:
        inner = self.heads * self.head_size
        projected = hidden * (inner + self._channels + self.heads) + inner * hidden
        return projected + self._channels * (self.convolution + 1) + inner + 3 * self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Mixer):
    """A gated convolution over the last `convolution` tokens (LFM2)."""

    part: ClassVar[str] = "linear"
    kernel: ClassVar[str] = "convolution"

    channels: int
    convolution: int

    def state(self, drafted: int = 0) -> int:
        return self.channels * (self.convolution - 1) * CONVOLUTION_WIDTH

    def loaded_weights(self, hidden: int) -> int:
        return 4 * hidden * self.channels + self.channels * self.convolution
