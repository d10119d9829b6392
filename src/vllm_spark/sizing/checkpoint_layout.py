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
from vllm_spark.sizing import roofline

# Part -> pattern of its tensor names. The first match counts. Scales and zeros belong to the weights that they scale.
PARTS = {
    "drafter": re.compile(r"(^|\.)mtp\."),
    "vision": re.compile(r"(^|[._])(vision|visual|audio|multi_modal)"),
    "router": re.compile(r"\.router\.|\.mlp\.gate\.|shared_expert_gate"),
    "experts": re.compile(r"\.experts\."),
    "attention": re.compile(r"\.(self_attn|linear_attn|attn)\."),
    "mlp": re.compile(r"\.(mlp|shared_expert)\."),
    "head": re.compile(r"(^|\.)lm_head\."),
    "embedding": re.compile(r"\.embed_tokens\."),
}

# Parts whose width is named in a recipe's layout.
LAYOUT_PARTS = ("attention", "mlp", "experts", "head")

# A width within this share of a known one has its name. Norms and scales add to the weights.
WIDTH_TOLERANCE = 0.06

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
    layout = {part: sizes[part] / filed[part] for part in LAYOUT_PARTS if filed[part] and part in sizes}
    doubts = [
        f"{part}: {sizes.get(part, 0) / GB:.2f} GB in the files for {filed[part] / 1e9:.2f} billion weights"
        for part in LAYOUT_PARTS
        if bool(filed[part]) != (part in sizes) or not NARROWEST <= layout.get(part, NARROWEST) <= WIDEST
    ]
    return CheckpointLayout(architecture, layout, weights["bytes"], tuple(doubts))


def width_name(width: float) -> str:
    """Return the name of a width, for example nvfp4, or the bytes per weight of a mixture."""
    name, known = min(roofline.WIDTHS.items(), key=lambda item: abs(item[1] - width))
    return name if abs(known - width) <= WIDTH_TOLERANCE * known else f"{width:.2f} B"


def differences(checkpoint: CheckpointLayout, named: Mapping[str, str]) -> list[str]:
    """Return a line for each part whose width differs from the one that the recipe names."""
    return [
        f"{part} is {width_name(checkpoint.layout[part])} in the files and {name} in the recipe"
        for part, name in named.items()
        if part in checkpoint.layout
        and abs(checkpoint.layout[part] - roofline.WIDTHS[name]) > WIDTH_TOLERANCE * roofline.WIDTHS[name]
    ]
