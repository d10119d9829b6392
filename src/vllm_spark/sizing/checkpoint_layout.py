"""The layout that a model's files really have, from what plugins/module_utils/spark_safetensors.py read of them. Pure.

A repository's name says little of it: two checkpoints called NVFP4 differ by 70 % in what a step reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_spark.core.units import GB
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import roofline

# Part of a tensor by its name; the first that matches. Scales and zeros belong to what they scale.
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

# Parts whose width a recipe's layout names.
CHOSEN = ("attention", "mlp", "experts", "head")

# A width within this share of a known one is called by its name: norms and scales come on top of the weights.
CLOSE = 0.06

# What a part may take per weight, from 4 bits to 32, with some room.
NARROWEST, WIDEST = 0.45, 4.2


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """What the files of a model hold. `doubts` are parts that do not go with the architecture."""

    architecture: Architecture
    layout: Mapping[str, float]
    bytes: int
    doubts: tuple[str, ...] = ()


def part_bytes(tensors: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Part -> bytes. Norms and what else belongs to no part are not among them."""
    found: dict[str, int] = {}
    for name, by_dtype in tensors.items():
        part = next((part for part, pattern in PARTS.items() if pattern.search(name)), None)
        if part:
            found[part] = found.get(part, 0) + sum(by_dtype.values())
    return found


def read(architecture: Architecture, answer: Mapping[str, Any]) -> CheckpointLayout:
    """The real layout of a model of this architecture, from facts.weights[folder], whose error is empty."""
    sizes = part_bytes(answer["tensors"])
    if "head" not in sizes and "embedding" in sizes:
        sizes["head"] = sizes.pop("embedding")
        architecture = replace(architecture, tied=True)
    elif "head" in sizes and "embedding" in sizes:
        architecture = replace(architecture, tied=False)
    filed = architecture.filed()
    layout = {part: sizes[part] / filed[part] for part in CHOSEN if filed[part] and part in sizes}
    doubts = [
        f"{part}: {sizes.get(part, 0) / GB:.2f} GB in the files for {filed[part] / 1e9:.2f} billion weights"
        for part in CHOSEN
        if bool(filed[part]) != (part in sizes) or not NARROWEST <= layout.get(part, NARROWEST) <= WIDEST
    ]
    return CheckpointLayout(architecture, layout, answer["bytes"], tuple(doubts))


def width_name(width: float) -> str:
    """The name of a width, e.g. nvfp4; of a mixture its bytes per weight."""
    name, known = min(roofline.WIDTHS.items(), key=lambda item: abs(item[1] - width))
    return name if abs(known - width) <= CLOSE * known else f"{width:.2f} B"


def differences(found: CheckpointLayout, named: Mapping[str, str]) -> list[str]:
    """Where the files are not as a recipe's checkpoint (or layout) says."""
    return [
        f"{part} is {width_name(found.layout[part])} in the files and {name} in the recipe"
        for part, name in named.items()
        if part in found.layout and abs(found.layout[part] - roofline.WIDTHS[name]) > CLOSE * roofline.WIDTHS[name]
    ]
