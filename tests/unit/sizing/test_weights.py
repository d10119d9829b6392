"""The layout from safetensors headers: the reader on the host and the analysis on the controller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from project_files import load_module
from vllm_spark.recipe import architecture
from vllm_spark.sizing import checkpoint_layout


@pytest.fixture
def reader() -> ModuleType:
    """The module of the host, imported as a member of the collection."""
    from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_safetensors  # noqa: PLC0415

    return spark_safetensors


ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "F32": 4, "I32": 4}
TINY = architecture.load("tiny-gemma4")


def encoded(tensors: Mapping[str, tuple[str, int]]) -> bytes:
    """Return a safetensors file. `tensors`: name -> (dtype, number of items)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, items) in tensors.items():
        begin, end = end, end + items * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": [items], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def tiny(experts: str = "BF16", attention: str = "BF16", head: bool = True) -> dict[str, tuple[str, int]]:
    """Return the tensors of a model of the tiny architecture; `experts` may be NVFP4: packed, with a scale per 16."""
    filed = TINY.stored_weights()
    tensors: dict[str, tuple[str, int]] = {"model.embed_tokens.weight": ("BF16", filed["embedding"])}
    for layer in range(4):
        base = f"model.layers.{layer}"
        tensors[f"{base}.self_attn.q_proj.weight"] = (attention, filed["attention"] // 4)
        tensors[f"{base}.self_attn.q_norm.weight"] = ("BF16", 64)
        tensors[f"{base}.mlp.gate_proj.weight"] = ("BF16", filed["mlp"] // 4)
        tensors[f"{base}.router.proj.weight"] = ("BF16", filed["router"] // 4)
        tensors[f"{base}.input_layernorm.weight"] = ("BF16", 256)
        for expert in range(8):
            count = filed["experts"] // 32
            name = f"{base}.experts.{expert}.down_proj.weight"
            if experts == "NVFP4":
                tensors |= {
                    name: ("U8", count // 2),
                    f"{name}_scale": ("F8_E4M3", count // 16),
                    f"{name}_scale_2": ("F32", 1),
                }
            else:
                tensors[name] = (experts, count)
    if head:
        tensors["lm_head.weight"] = ("BF16", filed["head"])
    return tensors


# content of the files, the expected layout
LAYOUTS = [
    (tiny(), {"attention": "bf16", "mlp": "bf16", "experts": "bf16", "head": "bf16"}),
    (tiny(experts="NVFP4"), {"attention": "bf16", "mlp": "bf16", "experts": "nvfp4", "head": "bf16"}),
    (
        tiny(experts="F8_E4M3", attention="F8_E4M3"),
        {"attention": "fp8", "mlp": "bf16", "experts": "fp8", "head": "bf16"},
    ),
]


@pytest.mark.parametrize(("tensors", "layout"), LAYOUTS)
def test_the_layout_is_read_from_the_files(
    tensors: dict[str, tuple[str, int]], layout: dict[str, str], tmp_path: Path, reader: ModuleType
) -> None:
    (tmp_path / "model.safetensors").write_bytes(encoded(tensors))
    weights = reader.summary(str(tmp_path))
    assert weights["error"] == ""
    assert weights["bytes"] == (tmp_path / "model.safetensors").stat().st_size
    checkpoint = checkpoint_layout.read(TINY, weights)
    assert checkpoint.doubts == ()
    assert {part: checkpoint_layout.width_name(width) for part, width in checkpoint.layout.items()} == layout
    assert checkpoint_layout.differences(checkpoint, layout) == []


def test_a_difference_from_the_recipe_is_reported(tmp_path: Path, reader: ModuleType) -> None:
    (tmp_path / "model.safetensors").write_bytes(encoded(tiny(experts="NVFP4")))
    checkpoint = checkpoint_layout.read(TINY, reader.summary(str(tmp_path)))
    differences = checkpoint_layout.differences(
        checkpoint, {"attention": "nvfp4", "mlp": "bf16", "experts": "nvfp4", "head": "bf16"}
    )
    assert differences == ["attention is bf16 in the files and nvfp4 in the recipe"]


def test_a_tied_head_has_the_layout_of_the_embedding(tmp_path: Path, reader: ModuleType) -> None:
    (tmp_path / "model.safetensors").write_bytes(encoded(tiny(head=False)))
    checkpoint = checkpoint_layout.read(TINY, reader.summary(str(tmp_path)))
    assert checkpoint.architecture.tied
    assert checkpoint_layout.width_name(checkpoint.layout["head"]) == "bf16"


def test_another_model_in_the_folder_is_doubted(tmp_path: Path, reader: ModuleType) -> None:
    dense = {name: shape for name, shape in tiny().items() if ".experts." not in name}
    (tmp_path / "model.safetensors").write_bytes(encoded(dense))
    checkpoint = checkpoint_layout.read(TINY, reader.summary(str(tmp_path)))
    assert [doubt.partition(":")[0] for doubt in checkpoint.doubts] == ["experts"]


def test_only_files_of_the_index_count(tmp_path: Path, reader: ModuleType) -> None:
    tensors = tiny()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        (tmp_path / file).write_bytes(encoded({name: tensors[name] for name in part}))
    (tmp_path / "consolidated.safetensors").write_bytes(encoded(tensors))
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / reader.INDEX).write_text(json.dumps(index))
    weights = reader.summary(str(tmp_path))
    assert (weights["files"], weights["error"]) == (2, "")
    assert checkpoint_layout.read(TINY, weights).layout["mlp"] == 2
    (tmp_path / "model-2.safetensors").unlink()
    assert "names 2 files, of which model-2.safetensors is missing" in reader.summary(str(tmp_path))["error"]
    (tmp_path / reader.INDEX).write_text("{")
    assert "is not an index of weights" in reader.summary(str(tmp_path))["error"]


def test_a_missing_folder_has_no_result(tmp_path: Path, reader: ModuleType) -> None:
    assert reader.summary(str(tmp_path / "none")) is None
    assert reader.summary(str(tmp_path)) == {"files": 0, "bytes": 0, "tensors": {}, "error": ""}


def test_the_disk_of_a_missing_folder_is_the_disk_of_its_parent(tmp_path: Path) -> None:
    facts = load_module("spark_facts")
    checkpoint = facts.disk(str(tmp_path / "not" / "yet"))
    assert checkpoint["total"] == facts.disk(str(tmp_path))["total"]
    assert 0 < checkpoint["free"] <= checkpoint["total"]


GOOD = encoded({"lm_head.weight": ("BF16", 100)})
BROKEN = {
    "empty": (b"", "has 0 bytes and a header of 0: cut off, or not safetensors"),
    "cut in the length": (GOOD[:5], "has 5 bytes and a header of"),
    "cut in the header": (GOOD[:40], "has 40 bytes and a header of"),
    "cut in the tensors": (GOOD[:-1], f"has {len(GOOD) - 1} bytes, and its tensors need {len(GOOD)}"),
    "too long": (GOOD + b"x", f"has {len(GOOD) + 1} bytes, and its tensors need {len(GOOD)}"),
    "a page of HTML": (b"<!DOCTYPE html><html></html>", "cut off, or not safetensors"),
    "no JSON": ((4).to_bytes(8, "little") + b"{{{{", "has a header that cannot be read"),
    "no text": ((4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc", "has a header that cannot be read"),
    "a list": ((2).to_bytes(8, "little") + b"[]", "has a header that cannot be read"),
    "no offsets": ((13).to_bytes(8, "little") + b'{"a": {"b":1}', "has a header that cannot be read"),
    "offsets of text": (
        (51).to_bytes(8, "little") + b'{"a":{"dtype":"BF16","data_offsets":["zero","one"]}}'[:51],
        "has a header that cannot be read",
    ),
}


@pytest.mark.parametrize("content", BROKEN, ids=BROKEN.keys())
def test_an_incomplete_file_is_named(content: str, tmp_path: Path, reader: ModuleType) -> None:
    data, expected = BROKEN[content]
    (tmp_path / "model.safetensors").write_bytes(data)
    weights = reader.summary(str(tmp_path))
    assert weights["error"].startswith(str(tmp_path / "model.safetensors"))
    assert expected in weights["error"]


# name of a tensor -> its part
NAMES = {
    "model.language_model.layers.3.self_attn.q_proj.weight_scale": "attention",
    "model.layers.3.linear_attn.in_proj_qkvz.weight": "linear",
    "backbone.layers.3.mixer.in_proj.weight": "linear",
    "backbone.layers.3.mixer.D": "linear",
    "model.layers.3.conv.in_proj.weight": "linear",
    "backbone.layers.7.mixer.q_proj.weight": "attention",
    "backbone.layers.1.mixer.up_proj.weight_scale": "mlp",
    "backbone.layers.1.mixer.gate.weight": "router",
    "backbone.layers.1.mixer.experts.3.down_proj.weight": "experts",
    "backbone.layers.1.mixer.shared_experts.up_proj.weight": "shared",
    "backbone.layers.1.mixer.fc1_latent_proj.weight": "latent",
    "backbone.embeddings.weight": "embedding",
    "model.language_model.embed_tokens_per_layer.weight": "embedding",
    "model.language_model.layers.3.per_layer_input_gate.weight": "per_layer",
    "model.layers.3.feed_forward.w1.weight": "mlp",
    "model.layers.3.mlp.gate_proj.weight": "mlp",
    "model.layers.3.mlp.gate.weight": "router",
    "model.layers.3.router.proj.weight": "router",
    "model.layers.3.mlp.experts.17.up_proj.weight": "experts",
    "model.layers.3.moe.experts.17.up_proj.weight_scale_2": "experts",
    "model.layers.3.mlp.shared_expert.up_proj.weight": "shared",
    "model.layers.3.mlp.shared_expert_gate.weight": "router",
    "model.vision_tower.encoder.layers.3.self_attn.q_proj.weight": "vision",
    "model.embed_vision.embedding_projection.weight": "vision",
    "model.visual.blocks.3.mlp.linear_fc1.weight": "vision",
    "mtp.layers.0.mlp.experts.3.up_proj.weight": "drafter",
    "lm_head.weight": "head",
    "model.language_model.embed_tokens.weight": "embedding",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_belongs_to_its_part(name: str) -> None:
    assert checkpoint_layout.part_bytes({name: {"BF16": 7}}) == {NAMES[name]: 7}


def test_a_norm_belongs_to_no_part() -> None:
    assert checkpoint_layout.part_bytes({"model.layers.3.input_layernorm.weight": {"BF16": 7}}) == {}
