"""The kinds of layers that mix tokens, by the name that an architecture file uses.

A further kind is one class with the interface of `Mixer`, its name here, and its fields in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm_spark.recipe.attention_layers import Attention, LatentAttention
from vllm_spark.recipe.mixer import Mixer
from vllm_spark.recipe.state_layers import GatedDelta, Mamba2, ShortConvolution, StateMixer

KINDS: Mapping[str, Callable[..., Mixer]] = {
    "sliding": Attention,
    "full": Attention,
    "borrowed": Attention,
    "mla": LatentAttention,
    "linear": StateMixer,
    "gated-delta": GatedDelta,
    "mamba-2": Mamba2,
    "short-convolution": ShortConvolution,
}


def of_document(group: Mapping[str, Any]) -> Mixer:
    """Return the layers that a group of an architecture file describes, which passed the schema."""
    return KINDS[group["kind"]](**group)
