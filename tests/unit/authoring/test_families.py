"""Families of models, and the widths that headers tell."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_spark.authoring import dimensions, family, sampling, widths
from vllm_spark.authoring.source import Tensor
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import architecture, engine_flags, flag_names, loader, shared_gates
from vllm_spark.recipe.feed_forward import Experts

HUB = Path(__file__).parents[2] / "data" / "hub"


def test_every_family_is_valid_and_a_model_type_has_one() -> None:
    families = family.load()
    assert {"gemma-4", "qwen3.5", "gpt-oss", "nemotron-3"} <= {one["name"] for one in families}
    types = Counter(
        (name, text) for one in families for name in one["model_types"] for text in one.get("text_types", [""])
    )
    assert [name for name, count in types.items() if count > 1] == []


def test_recipe_new_and_the_forecast_have_one_name_for_a_family() -> None:
    """The others are parts of a family with a name of their own, a drafter, and the model of the sandbox."""
    own = {one["name"].replace(".", "-") for one in family.load()}
    parts = {"granite-4-1", "lfm2-5", "ministral-3", "qwen3-6"}
    named = {architecture.load(name).family for name in architecture.names()}
    assert named - own == {*parts, "gemma-4-assistant", "tiny"}


@pytest.mark.parametrize("known", family.load(), ids=lambda one: one["name"])
def test_the_newest_engine_has_what_a_family_names(known: dict[str, Any]) -> None:
    engine = flag_names.engine_of(engine_flags.versions()[-1])
    for kind, flag in (("reasoning", "reasoning-parser"), ("tools", "tool-call-parser")):
        for row in known.get("parsers", {}).get(kind, ()):
            assert row["name"] in (engine.flags[flag].later or ())
    for row in known.get("args", ()):
        assert set(row["set"]) <= set(engine.flags)
    for row in known.get("gates", ()):
        assert set(row["use"]) <= set(shared_gates.load())
    for row in known.get("drafters", ()):
        assert "repository" in row or row["mixer"] in known["architecture"]["kinds"]
        assert set(row.get("config", {})) <= set(engine.drafter_keys)
        assert row.get("architecture", "gemma-4-31b") in architecture.names()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": "other"}, "name: other — expected: broken"),
        ({"model_types": []}, "model_types"),
        ({"unknown": 1}, "unknown key unknown"),
        ({"engine": {"since": "0.30"}}, "engine"),
    ],
)
def test_a_broken_family_is_refused(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    document = yaml.load((family.FOLDER / "llama-3.yml").read_text(), yaml.CSafeLoader)
    (tmp_path / "broken.yml").write_text(yaml.safe_dump({**document, "name": "broken", **change}))
    with pytest.raises(RefusedError, match="Fix: correct") as refused:
        family.load(tmp_path)
    assert expected in str(refused.value)


# Published counts of weights in billions, by the name or the page of the model.
PUBLISHED = {
    "openai--gpt-oss-120b": 116.8,
    "openai--gpt-oss-20b": 20.9,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 120.6,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "Qwen--Qwen3-30B-A3B-FP8": 30.5,
    "nvidia--MiniMax-M2.5-NVFP4": 228.7,
    "meta-llama--Meta-Llama-3.1-8B": 8.03,
    "deepseek-ai--DeepSeek-V3": 671.0,
    "google--gemma-4-26B-A4B": 25.2,
    # 298.8 with the MTP layer, which is 3.8.
    "tencent--Hy3": 295.0,
    "moonshotai--Kimi-K2.5": 1026.0,
    # Its files have 16.9 GB in BF16.
    "LiquidAI--LFM2.5-8B-A1B": 8.45,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_gives_the_published_number_of_weights(name: str) -> None:
    config = json.loads((HUB / name / "config.json").read_text())
    found = dimensions.read(config, family.of_config(name, config)["architecture"])
    assert found.questions == []
    built = architecture.from_document({**found.document, "name": "x", "family": "y"})
    assert sum(built.weights().values()) / 1e9 == pytest.approx(PUBLISHED[name], rel=0.004)


# Layers that no architecture file can describe, and the billions of weights of the experts, which are settled.
OPEN = {
    "deepseek-ai--DeepSeek-V4-Flash": (["compressed attention"], 277.0),
    "zai-org--GLM-5.3-Flash": (["deepseek_sparse_attention", "linear_attention"], 304.4),
    "RadixArk--Qwen3.8-Flash-Next-NVFP4": (["indexed attention"], 120.8),
    "MiniMaxAI--MiniMax-M3": (["block-sparse attention"], 413.1),
    "stepfun-ai--Step-3.7-Flash": (["sliding_attention"], 190.2),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_layer_that_cannot_be_described_stays_open(name: str) -> None:
    config = json.loads((HUB / name / "config.json").read_text())
    kinds, billions = OPEN[name]
    found = dimensions.read(config, family.of_config(name, config)["architecture"])
    assert [question for question in found.questions if "of the kind" in question] == [
        f"attention: what is a layer of the kind {kind}? The family does not know it" for kind in kinds
    ]
    experts = Experts(**found.document["experts"])
    assert experts.weights(found.document["hidden"])["experts"] / 1e9 == pytest.approx(billions, rel=0.001)


def test_a_dimension_that_is_missing_becomes_a_question() -> None:
    config = json.loads((HUB / "openai--gpt-oss-20b" / "config.json").read_text())
    del config["num_local_experts"], config["sliding_window"]
    found = dimensions.read(config, family.of_config("x", config)["architecture"])
    assert found.questions == [
        "attention: what is window of the sliding layers? config.json has no usable sliding_window"
    ]
    assert "experts" not in found.document


WEIGHT = {
    "bf16": ("BF16", (256, 512)),
    "f8": ("F8_E4M3", (256, 512)),
    "u8": ("U8", (256, 256)),
    "i32": ("I32", (64, 512)),
}
# width -> (weight, scales)
WIDTHS: dict[str, tuple[str, list[Tensor]]] = {
    "bf16": ("bf16", []),
    "fp8": ("f8", [Tensor("F32", ())]),
    "fp8-block": ("f8", [Tensor("F32", (2, 4))]),
    "mxfp8": ("f8", [Tensor("U8", (256, 16))]),
    "nvfp4": ("u8", [Tensor("F8_E4M3", (256, 32))]),
    "mxfp4": ("u8", [Tensor("U8", (256, 16))]),
    "int4-g32": ("i32", [Tensor("BF16", (256, 32))]),
    "int4-g128": ("i32", [Tensor("F16", (256, 8))]),
}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_width_follows_from_the_dtypes(width: str) -> None:
    weight, scales = WIDTHS[width]
    counts = {"i32": 64 * 512 * 8}
    assert widths.width_of(Tensor(*WEIGHT[weight]), scales) == (width, counts.get(weight, 256 * 512))


UNKNOWN = {
    "bytes without scales": (Tensor("U8", (256, 256)), []),
    "a group of 64": (Tensor("I32", (64, 512)), [Tensor("F16", (256, 16))]),
    "four bits with scales in FP32": (Tensor("U8", (256, 256)), [Tensor("F32", (256, 32))]),
    "a dtype of tomorrow": (Tensor("F4_E2M1", (256, 256)), []),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_width_that_is_not_known_is_not_guessed(what: str) -> None:
    weight, scales = UNKNOWN[what]
    assert widths.width_of(weight, scales)[0] == ""
    named = {"model.layers.0.mlp.up_proj.weight": weight} | dict.fromkeys(
        [f"model.layers.0.mlp.up_proj.{name}" for name in ("weight_scale", "scales")][: len(scales)],
        *scales[:1] or [weight],
    )
    assert widths.parts(named, 1)["mlp"].layout() is None


def test_a_mixture_is_given_in_layers() -> None:
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": Tensor("BF16", (64, 64)) for n in range(6)}
    for number in (6, 7):
        tensors[f"model.layers.{number}.mlp.up_proj.weight"] = Tensor("F8_E4M3", (64, 64))
        tensors[f"model.layers.{number}.mlp.up_proj.weight_scale"] = Tensor("F32", ())
    assert widths.parts(tensors, 8)["mlp"].layout() == {"bf16": 6, "fp8": 2}


def test_layers_beyond_the_last_are_the_drafting_head() -> None:
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": Tensor("BF16", (64, 64)) for n in range(3)}
    assert {part: sum(found.weights.values()) for part, found in widths.parts(tensors, 2).items()} == {
        "mlp": 2 * 64 * 64,
        "drafter": 64 * 64,
    }


def layer(number: int, size: int = 64) -> dict[str, Tensor]:
    return {
        f"model.layers.{number}.mlp.{name}.weight": Tensor("BF16", (size, size)) for name in ("up_proj", "down_proj")
    }


def test_layers_that_were_not_read_follow_from_the_size_of_the_files() -> None:
    kinds = ["a", "b"] * 4
    every = {name: tensor for number in range(8) for name, tensor in layer(number, 64 if number % 2 else 32).items()}
    size = int(sum(sampling.tensor_bytes(tensor) for tensor in every.values()))
    read = {name: tensor for name, tensor in every.items() if ".0." in name or ".1." in name or ".2.mlp.up" in name}
    assert sampling.completed(read, kinds, size) == every
    assert sampling.completed(read, kinds, int(size * 1.01)) is None, "a layer that differs"
    assert sampling.completed(layer(0, 32), kinds, size) is None, "no layer of the kind b was read"


@pytest.mark.parametrize("count", range(6))
def test_files_are_read_from_both_ends(count: int) -> None:
    paths = [str(number) for number in range(count)]
    order = sampling.order(paths)
    assert sorted(order) == paths
    assert order[:2] == [*paths[:1], *paths[1:][-1:]]


def test_the_recipe_of_the_catalogue_has_what_its_family_adds() -> None:
    """One address and one checksum, in the recipe that people read and in what `recipe new` writes."""
    (added,) = [one["adds"] for one in family.load() if one["name"] == "gpt-oss"]
    recipe = loader.load("gpt-oss-120b").document
    assert recipe["image"]["derive"] == added["derive"]
    assert recipe["env"] == added["env"]
