"""The files of a published model, as far as `recipe new` reads them: its configuration, and headers that stand for its
weights.

No header of a hub is in this repository. A model has one tensor for each part, of the number of weights that follows
from its configuration and of the width that a source names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.authoring import dimensions, family
from vllm_spark.authoring.headers import BITS
from vllm_spark.authoring.source import Source, Tensor
from vllm_spark.recipe import architecture
from vllm_spark.sizing.layout import Width

WEIGHTS = "model.safetensors"

# Part -> the name of its module. A head that is the embedding has the embedding's name.
MODULES: Mapping[str, str] = {
    "attention": "model.layers.{}.self_attn.q_proj",
    "linear": "model.layers.{}.linear_attn.in_proj",
    "mlp": "model.layers.{}.mlp.up_proj",
    "shared": "model.layers.{}.mlp.shared_experts.up_proj",
    "experts": "model.layers.{}.mlp.experts.0.up_proj",
    "latent": "model.layers.{}.fc1_latent_proj",
    "per_layer": "model.layers.{}.per_layer_input_gate",
    "head": "lm_head",
    "embedding": "model.embed_tokens",
    "vision": "model.visual.proj",
}
# Width -> dtype of the weights, how many of them an element holds, dtype of the scales, and the weights of a scale.
STORED: Mapping[str, tuple[str, int, str, int]] = {
    "bf16": ("BF16", 1, "", 0),
    "fp8": ("F8_E4M3", 1, "F32", 0),
    "fp8-block": ("F8_E4M3", 1, "F32", 128**2),
    "nvfp4": ("U8", 2, "F8_E4M3", 16),
    "mxfp4": ("U8", 2, "U8", 32),
    "int4-g32": ("I32", 8, "BF16", 32),
}


@dataclass
class Published(Source):
    """A public configuration with the quantisation beside it, and tensors that stand for its files."""

    name: str
    config: Mapping[str, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.repository, self.revision = self.name, "0" * 40
        self._texts = {"config.json": json.dumps(self.config)}
        if self.beside:
            self._texts["hf_quant_config.json"] = json.dumps(self.beside)
        size = sum(math.prod(tensor.shape) * BITS[tensor.dtype] // 8 for tensor in self.tensors.values())
        self.files = {name: len(text) for name, text in self._texts.items()} | ({WEIGHTS: size} if size else {})

    def text(self, path: str) -> str:
        return self._texts[path]

    def headers(self, paths: list[str]) -> Mapping[str, Mapping[str, Tensor]]:
        return dict.fromkeys(paths, self.tensors)


def tensors(config: Mapping[str, Any], layout: Mapping[str, Width]) -> dict[str, Tensor]:
    """Return a tensor for each part of a model, and its scales. Empty if the dimensions are not known."""
    found = dimensions.read(config, family.of_config("", config)["architecture"])
    if found.questions or not layout:
        return {}
    model = architecture.from_document({**found.document, "name": "x", "family": "y"})
    result: dict[str, Tensor] = {}
    for part, count in model.stored_weights().items():
        if count and part in MODULES:
            width = layout.get(part) or layout.get(architecture.PARTS[part]) or "bf16"
            shares = {width: model.mixers} if isinstance(width, str) else width
            module = MODULES["embedding" if part == "head" and model.tied else part]
            result |= dict(_stored(module + "_per_layer" * (part == "embedding" and model.tied), count, shares))
    return result


def _stored(module: str, count: int, shares: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights and scales of a part, each layer apart. `shares` is width -> layers."""
    widths = [width for width, layers in shares.items() for _ in range(layers)] if "{}" in module else [*shares]
    for number, width in enumerate(widths):
        dtype, packed, scale, group = STORED[width]
        name, size = module.format(number), count // len(widths)
        yield f"{name}.weight", Tensor(dtype, (2, size // 2 // packed))
        if scale:
            yield f"{name}.weight_scale", Tensor(scale, (2, max(size // 2 // group, 2)) if group else ())
