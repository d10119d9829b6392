"""The layout of a model's files, from the headers that plugins/module_utils/spark_safetensors.py reads. Pure.

The name of a repository is not enough: two checkpoints called NVFP4 differ by 70 % in the bytes that a step reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_spark.core.types import WeightFacts
from vllm_spark.core.units import GB
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing.layout import WIDTHS, Width, mean

# Part -> pattern of its tensor names. The first match counts. Scales and zeros belong to the weights that they scale.
PARTS = {
    "drafter": re.compile(r"(^|\.)mtp\."),
    "vision": re.compile(r"(^|[._])(vision|visual|audio|multi_modal)"),
    "router": re.compile(r"\.router\.|\.(mlp|mixer|feed_forward)\.gate\.|shared_expert_gate"),
    "shared": re.compile(r"\.shared_experts?\."),
    "experts": re.compile(r"\.experts\."),
    "latent": re.compile(r"\.fc[12]_latent_proj\."),
    "linear": re.compile(r"\.linear_attn\.|\.conv\.|\.mixer\.(in_proj|out_proj|conv1d|norm|A_log|D$|dt_bias)"),
    "attention": re.compile(r"\.(self_attn|attn|attention)\.|\.mixer\.[qkvo]_proj"),
    "mlp": re.compile(r"\.(mlp|feed_forward)\.|\.mixer\.(up|down)_proj"),
    "per_layer": re.compile(r"\.per_layer_"),
    "head": re.compile(r"(^|\.)lm_head\."),
    "embedding": re.compile(r"\.(embed_tokens|embed_tokens_per_layer|embeddings)\."),
}

# Parts whose width is named in a recipe's layout.
LAYOUT_PARTS = ("attention", "linear", "mlp", "shared", "experts", "latent", "per_layer", "head")

# Parts that an architecture may count in another one: the expert of every token as an MLP, layers with a state as
# attention.
COUNTED_IN = {"shared": "mlp", "linear": "attention"}

# A width within this share of a known one has its name. Norms and scales add to the weights.
WIDTH_TOLERANCE = 0.06

# Widths that the size of the files tells apart. FP8 per block and INT8 are as large as FP8.
NAMED = {name: width for name, width in WIDTHS.items() if name not in {"fp8-block", "int8"}}

# Limits of the bytes per weight of a part: 4 to 32 bits, with a margin.
NARROWEST, WIDEST = 0.45, 4.2


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """Content of a model's files: part -> bytes per weight, and the total size.

    `doubts` are the parts that do not match the architecture.
    """

    architecture: Architecture
    layout: Mapping[str, float]
    bytes: int
    doubts: tuple[str, ...] = ()


def part_bytes(tensors: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return part -> bytes. Norms and other tensors that belong to no part are left out."""
    sizes: dict[str, int] = {}
    for name, by_dtype in tensors.items():
        part = next((part for part, pattern in PARTS.items() if pattern.search(name)), None)
        if part:
            sizes[part] = sizes.get(part, 0) + sum(by_dtype.values())
    return sizes


def read(architecture: Architecture, weights: WeightFacts) -> CheckpointLayout:
    """Return the layout of a model of this architecture. `weights` must have no error."""
    sizes = part_bytes(weights["tensors"])
    if "head" not in sizes and "embedding" in sizes:
        sizes["head"] = sizes.pop("embedding")
        architecture = replace(architecture, tied=True)
    elif "head" in sizes and "embedding" in sizes:
        architecture = replace(architecture, tied=False)
    filed = architecture.stored_weights()
    for part, other in COUNTED_IN.items():
        if part in sizes and not filed[part]:
            sizes[other] = sizes.get(other, 0) + sizes.pop(part)
    layout = {part: sizes[part] / filed[part] for part in LAYOUT_PARTS if filed[part] and part in sizes}
    doubts = [
        f"{part}: {sizes.get(part, 0) / GB:.2f} GB in the files for {filed[part] / 1e9:.2f} billion weights"
        for part in LAYOUT_PARTS
        if bool(filed[part]) != (part in sizes) or not NARROWEST <= layout.get(part, NARROWEST) <= WIDEST
    ]
    return CheckpointLayout(architecture, layout, weights["bytes"], tuple(doubts))


def width_name(width: float) -> str:
    """Return the name of a width, for example nvfp4, or the bytes per weight of a mixture."""
    name, known = min(NAMED.items(), key=lambda item: abs(item[1] - width))
    return name if abs(known - width) <= WIDTH_TOLERANCE * known else f"{width:.2f} B"


def differences(checkpoint: CheckpointLayout, named: Mapping[str, Width]) -> list[str]:
    """Return a line for each part whose width differs from the one that the recipe names."""
    return [
        f"{part} is {width_name(checkpoint.layout[part])} in the files and {width_name(mean(width))} in the recipe"
        for part, width in named.items()
        if part in checkpoint.layout and abs(checkpoint.layout[part] - mean(width)) > WIDTH_TOLERANCE * mean(width)
    ]
