"""Safetensors headers derived from a published config.json and its list of quantised modules.

The tensors have the names and shapes with which the publishers save such models. They are derived and not copied: no
weights and no header of a hub are in this repository. What is derived without a list (`widths`) is said in
tests/data/hub/models.yml.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Tensor name -> (dtype, shape).
Tensors = dict[str, tuple[str, tuple[int, ...]]]
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}


@dataclass(frozen=True)
class Model:
    """A model of the stand-in hub. `widths` overrides the quantisation's lists: part of a module's name -> width."""

    config: Mapping[str, Any]
    quantisation: Mapping[str, Any]
    widths: Mapping[str, str]
    vision: int = 0
    head: bool = False

    @property
    def text(self) -> Mapping[str, Any]:
        return self.config.get("text_config", self.config)

    def width(self, module: str) -> str:
        for part, width in self.widths.items():
            if part in module:
                return width
        quant = self.quantisation.get("quantization", self.quantisation)
        listed = quant.get("quantized_layers")
        if listed is not None:
            found = next((row for name, row in listed.items() if module == name or module.startswith(f"{name}.")), None)
            return "bf16" if found is None else "nvfp4" if "NVFP4" in found["quant_algo"] else "fp8"
        skipped = [
            name for key in ("ignore", "exclude_modules", "modules_to_not_convert") for name in quant.get(key) or []
        ]
        if any(fnmatch.fnmatch(module, pattern) or module.startswith(f"{pattern}.") for pattern in skipped):
            return "bf16"
        if "weight_block_size" in quant:
            return "fp8-block"
        return "nvfp4" if "NVFP4" in str(quant) or "group_0" in str(quant) else "bf16"


def tensors(model: Model) -> Tensors:
    """Return every tensor of a model."""
    found: Tensors = {}
    for name, shape in KINDS[model.config["model_type"]](model):
        found |= _module(name, shape, model)
    if model.vision:
        found["model.visual.derived.weight"] = ("BF16", (model.vision,))
    return found


def _module(name: str, shape: tuple[int, ...], model: Model) -> Tensors:
    module = name.removesuffix(".weight")
    plain = not name.endswith(".weight") or len(shape) != 2 or "norm" in name or "embed" in name or ".gate." in name
    width = "bf16" if plain else model.width(module)
    rows, columns = (*shape, 1, 1)[:2]
    if width == "fp8":
        return {name: ("F8_E4M3", shape), f"{module}.weight_scale": ("F32", ()), f"{module}.input_scale": ("F32", ())}
    if width == "fp8-block":
        scale = (math.ceil(rows / 128), math.ceil(columns / 128))
        return {name: ("F8_E4M3", shape), f"{module}.weight_scale_inv": ("F32", scale)}
    if width == "nvfp4":
        return {
            name: ("U8", (rows, columns // 2)),
            f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
            f"{module}.weight_scale_2": ("F32", ()),
            f"{module}.input_scale": ("F32", ()),
        }
    return {name: ("U8" if name.endswith(("_blocks", "_scales")) else "BF16", shape)}


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _ends(model: Model, prefix: str, embedding: str = "embed_tokens") -> Shapes:
    text = model.text
    size = (text["vocab_size"], text["hidden_size"])
    yield f"{prefix}.{embedding}.weight", size
    if not model.config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)):
        yield "lm_head.weight", size


def _attention(model: Model, layer: str, kv_heads: int, size: int, gated: int = 1) -> Shapes:
    """`gated` is 2 if q_proj has a second half."""
    hidden, heads = model.text["hidden_size"], model.text["num_attention_heads"]
    yield f"{layer}.q_proj.weight", (heads * size * gated, hidden)
    yield f"{layer}.k_proj.weight", (kv_heads * size, hidden)
    yield f"{layer}.v_proj.weight", (kv_heads * size, hidden)
    yield f"{layer}.o_proj.weight", (hidden, heads * size)


def _gated_mlp(layer: str, hidden: int, width: int) -> Shapes:
    yield f"{layer}.gate_proj.weight", (width, hidden)
    yield f"{layer}.up_proj.weight", (width, hidden)
    yield f"{layer}.down_proj.weight", (hidden, width)


def _qwen3(model: Model) -> Shapes:
    text = model.text
    yield from _ends(model, "model")
    for index in range(text["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield from _attention(model, f"{layer}.self_attn", text["num_key_value_heads"], text["head_dim"])
        yield f"{layer}.mlp.gate.weight", (text["num_experts"], text["hidden_size"])
        for expert in range(text["num_experts"]):
            yield from _gated_mlp(f"{layer}.mlp.experts.{expert}", text["hidden_size"], text["moe_intermediate_size"])


def _qwen3_5(model: Model) -> Shapes:
    text, base = model.text, "model.language_model"
    yield from _ends(model, base)
    for index, kind in enumerate(text["layer_types"]):
        yield from _qwen3_5_layer(model, f"{base}.layers.{index}", kind)
    if model.head:
        yield "mtp.fc.weight", (text["hidden_size"], 2 * text["hidden_size"])
        yield from _qwen3_5_layer(model, "mtp.layers.0", "full_attention")


def _qwen3_5_layer(model: Model, layer: str, kind: str) -> Shapes:
    text = model.text
    hidden = text["hidden_size"]
    if kind == "full_attention":
        yield from _attention(model, f"{layer}.self_attn", text["num_key_value_heads"], text["head_dim"], gated=2)
    else:
        values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
        channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
        yield f"{layer}.linear_attn.in_proj_qkv.weight", (channels, hidden)
        yield f"{layer}.linear_attn.in_proj_z.weight", (values, hidden)
        yield f"{layer}.linear_attn.in_proj_a.weight", (text["linear_num_value_heads"], hidden)
        yield f"{layer}.linear_attn.in_proj_b.weight", (text["linear_num_value_heads"], hidden)
        yield f"{layer}.linear_attn.conv1d.weight", (channels, 1, text["linear_conv_kernel_dim"])
        yield f"{layer}.linear_attn.out_proj.weight", (hidden, values)
    if "num_experts" not in text:
        yield from _gated_mlp(f"{layer}.mlp", hidden, text["intermediate_size"])
        return
    yield f"{layer}.mlp.gate.weight", (text["num_experts"], hidden)
    yield f"{layer}.mlp.shared_expert_gate.weight", (1, hidden)
    yield from _gated_mlp(f"{layer}.mlp.shared_expert", hidden, text["shared_expert_intermediate_size"])
    yield from _experts(model, f"{layer}.mlp.experts", text["num_experts"])


def _experts(model: Model, layer: str, count: int) -> Shapes:
    """Yield the experts: in BF16 fused to one tensor for all, otherwise one by one."""
    hidden, width = model.text["hidden_size"], model.text["moe_intermediate_size"]
    if model.width(f"{layer}.0.up_proj") == "bf16":
        yield f"{layer}.gate_up_proj", (count, 2 * width, hidden)
        yield f"{layer}.down_proj", (count, hidden, width)
        return
    for expert in range(count):
        yield from _gated_mlp(f"{layer}.{expert}", hidden, width)


def _gemma4(model: Model) -> Shapes:
    text, base = model.text, "model.language_model" if "text_config" in model.config else "model"
    hidden = text["hidden_size"]
    yield from _ends(model, base)
    for index, kind in enumerate(text["layer_types"]):
        layer, full = f"{base}.layers.{index}", kind == "full_attention"
        size = text["global_head_dim"] if full else text["head_dim"]
        kv_heads = text["num_global_key_value_heads"] if full else text["num_key_value_heads"]
        for name, shape in _attention(model, f"{layer}.self_attn", kv_heads, size):
            if not (full and text["attention_k_eq_v"] and "v_proj" in name):
                yield name, shape
        yield from _gated_mlp(f"{layer}.mlp", hidden, text["intermediate_size"])
        if text["enable_moe_block"]:
            yield f"{layer}.router.proj.weight", (text["num_experts"], hidden)
            yield from _experts(model, f"{layer}.experts", text["num_experts"])


def _gpt_oss(model: Model) -> Shapes:
    text = model.text
    hidden, count, width = text["hidden_size"], text["num_local_experts"], text["intermediate_size"]
    yield from _ends(model, "model")
    for index in range(text["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield from _attention(model, f"{layer}.self_attn", text["num_key_value_heads"], text["head_dim"])
        yield f"{layer}.mlp.router.weight", (count, hidden)
        yield f"{layer}.mlp.experts.gate_up_proj_blocks", (count, 2 * width, hidden // 32, 16)
        yield f"{layer}.mlp.experts.gate_up_proj_scales", (count, 2 * width, hidden // 32)
        yield f"{layer}.mlp.experts.down_proj_blocks", (count, hidden, width // 32, 16)
        yield f"{layer}.mlp.experts.down_proj_scales", (count, hidden, width // 32)
        yield f"{layer}.mlp.experts.gate_up_proj_bias", (count, 2 * width)


def _nemotron(model: Model) -> Shapes:
    text = model.text
    letters = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    kinds = text.get("layers_block_type") or [letters[letter] for letter in text["hybrid_override_pattern"]]
    yield from _ends(model, "backbone", "embeddings")
    for index, kind in enumerate(kinds):
        yield from _nemotron_layer(model, f"backbone.layers.{index}.mixer", kind)
    if model.head:
        yield "mtp.layers.0.eh_proj.weight", (text["hidden_size"], 2 * text["hidden_size"])
        yield from _nemotron_layer(model, "mtp.layers.0.mixer", "attention")
        yield from _nemotron_layer(model, "mtp.layers.1.mixer", "moe")


def _nemotron_layer(model: Model, layer: str, kind: str) -> Shapes:
    text = model.text
    hidden = text["hidden_size"]
    if kind == "mamba":
        inner = text["mamba_num_heads"] * text["mamba_head_dim"]
        channels = inner + 2 * text["n_groups"] * text["ssm_state_size"]
        yield f"{layer}.in_proj.weight", (inner + channels + text["mamba_num_heads"], hidden)
        yield f"{layer}.conv1d.weight", (channels, 1, text["conv_kernel"])
        yield f"{layer}.out_proj.weight", (hidden, inner)
    elif kind == "attention":
        yield from _attention(model, layer, text["num_key_value_heads"], text["head_dim"])
    else:
        size = text.get("moe_latent_size") or hidden
        if size != hidden:
            yield f"{layer}.fc1_latent_proj.weight", (size, hidden)
            yield f"{layer}.fc2_latent_proj.weight", (hidden, size)
        yield f"{layer}.gate.weight", (text["n_routed_experts"], hidden)
        shared = text["moe_shared_expert_intermediate_size"]
        yield f"{layer}.shared_experts.up_proj.weight", (shared, hidden)
        yield f"{layer}.shared_experts.down_proj.weight", (hidden, shared)
        for expert in range(text["n_routed_experts"]):
            yield f"{layer}.experts.{expert}.up_proj.weight", (text["moe_intermediate_size"], size)
            yield f"{layer}.experts.{expert}.down_proj.weight", (size, text["moe_intermediate_size"])


def _minimax(model: Model) -> Shapes:
    text = model.text
    yield from _ends(model, "model")
    for index in range(text["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield from _attention(model, f"{layer}.self_attn", text["num_key_value_heads"], text["head_dim"])
        moe = f"{layer}.block_sparse_moe"
        yield f"{moe}.gate.weight", (text["num_local_experts"], text["hidden_size"])
        for expert in range(text["num_local_experts"]):
            for name, shape in zip(
                ("w1", "w2", "w3"), _gated_mlp("", text["hidden_size"], text["intermediate_size"]), strict=True
            ):
                yield f"{moe}.experts.{expert}.{name}.weight", shape[1]


def _llama(model: Model) -> Shapes:
    text = model.text
    yield from _ends(model, "model")
    for index in range(text["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        size = text["hidden_size"] // text["num_attention_heads"]
        yield from _attention(model, f"{layer}.self_attn", text["num_key_value_heads"], size)
        yield from _gated_mlp(f"{layer}.mlp", text["hidden_size"], text["intermediate_size"])


KINDS: Mapping[str, Callable[[Model], Shapes]] = {
    "qwen3_moe": _qwen3,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "gpt_oss": _gpt_oss,
    "nemotron_h": _nemotron,
    "minimax_m2": _minimax,
    "llama": _llama,
}


def size(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor."""
    return BYTES[dtype] * math.prod(shape)


def header(part: Tensors) -> tuple[bytes, int]:
    """Return the first bytes of a safetensors file, up to its tensors, and the size of the whole file."""
    document, offset = {}, 0
    for name, (dtype, shape) in part.items():
        end = offset + size(dtype, shape)
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    content = json.dumps({"__metadata__": {"format": "pt"}, **document}, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    start = len(content).to_bytes(8, "little") + content
    return start, len(start) + offset


def shards(found: Tensors, count: int) -> Iterator[Tensors]:
    """Yield the tensors in `count` files of about equal size, in their order."""
    total, filled, part = sum(size(*tensor) for tensor in found.values()), 0, {}
    done = 0
    for name, tensor in found.items():
        part[name] = tensor
        filled += size(*tensor)
        if filled * count >= total * (done + 1) and done < count - 1:
            yield part
            part, done = {}, done + 1
    yield part
