"""Predicted memory, and loads that do not fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vllm_spark.core.units import GIB
from vllm_spark.recipe import architecture, loader
from vllm_spark.sizing import kv_cache, layout, memory, reference_spark

TOTAL = reference_spark.MEMORY["total"]


def of(name: str, **changes: Any) -> dict[str, Any]:
    """Return the document of a recipe with changes to its blocks."""
    document = copy.deepcopy(dict(loader.load(name).document))
    for block, change in changes.items():
        document[block] = {**document[block], **change}
    return document


# recipe of a field report, its utilization, and the GiB of cache in the report
REPORTED = [
    ("gemma-4-31b-nvfp4-fp8kv", 0.85, 66.95),
    ("gemma-4-26b-a4b-nvfp4-patched", 0.85, 81.8),
]


@pytest.mark.parametrize(("name", "utilization", "cache"), REPORTED)
def test_the_cache_of_a_report_is_predicted(name: str, utilization: float, cache: float) -> None:
    document = of(name, memory={"utilization": utilization})
    model = memory.model_of(document)
    assert model is not None
    fit = memory.fit(document, model, reference_spark.MEMORY, document["args"]["max-model-len"])
    assert fit.room / GIB == pytest.approx(cache, abs=1.2)


def test_quantising_at_load_needs_the_size_of_the_files() -> None:
    document = of("gemma-4-31b-fp8", memory={"utilization": 0.2})
    assert memory.loading_peak_bytes(document) == document["model"]["size_bytes"]
    assert memory.needed_bytes(document, TOTAL) == document["model"]["size_bytes"]
    measured = of("gemma-4-31b-fp8", memory={"utilization": 0.2, "loading_peak_bytes": 80 * GIB})
    assert memory.needed_bytes(measured, TOTAL) == 80 * GIB
    assert memory.loading_peak_bytes(of("gemma-4-31b-fp8-tp2")) == pytest.approx(31.29e9, rel=0.01)
    assert memory.loading_peak_bytes(of("gemma-4-26b-a4b-nvfp4-patched")) == 0


# args, width of the experts, bytes of a number in the cache
CACHES = [
    ({"kv-cache-dtype": "fp8"}, "bf16", 1.0),
    ({"kv-cache-dtype": "fp8_e4m3"}, "bf16", 1.0),
    ({"kv-cache-dtype": "bfloat16"}, "nvfp4", 2.0),
    ({}, "nvfp4", 1.0),
    ({}, "fp8", 2.0),
    ({"kv-cache-dtype": "auto"}, "bf16", 2.0),
]


@pytest.mark.parametrize(("args", "experts", "width"), CACHES)
def test_auto_means_fp8_for_an_nvfp4_checkpoint(args: dict[str, str], experts: str, width: float) -> None:
    assert memory.kv_width({"args": args, "model": {"layout": {"experts": experts}}}) == width


def test_a_cache_of_a_given_size_comes_on_top_of_the_weights() -> None:
    document = of("gemma-4-26b-a4b-nvfp4-patched", memory={"kv_cache_bytes": 10 * GIB})
    model = memory.model_of(document)
    assert model is not None
    weights = sum(model.loaded_bytes(1).values())
    assert memory.reserved_bytes(document, TOTAL) == weights + memory.workspace_bytes(document) + 10 * GIB
    assert memory.fit(document, model, reference_spark.MEMORY, 1024).room == 10 * GIB


def test_vision_is_left_out_where_the_engine_leaves_it_out() -> None:
    with_vision = of("gemma-4-26b-a4b-fp8", args={"language-model-only": False})
    sizes = [
        sum(m.loaded_bytes(1).values()) for d in (with_vision, of("gemma-4-26b-a4b-fp8")) if (m := memory.model_of(d))
    ]
    assert sizes[0] - sizes[1] == 2 * architecture.load("gemma-4-26b-a4b").vision


def test_a_drafter_without_an_architecture_takes_its_files_size() -> None:
    document = of("gemma-4-26b-a4b-nvfp4-patched")
    document["drafter"] = {"repository": "owner/drafter", "speculative_tokens": 8, "size_bytes": 3_000_000_000}
    model = memory.model_of(document)
    assert model is not None
    assert model.loaded_bytes(2)["drafter"] == 1_500_000_000


def test_a_linear_layer_keeps_a_state_and_no_tokens() -> None:
    model = architecture.load("qwen3.6-35b-a3b")
    cache = kv_cache.of(model, 2.0)
    # 30 states in three groups of ten; a page of a full layer holds a state, which is 1056 tokens in BF16.
    assert {(group.count, group.states) for group in cache.groups} == {(3, 2), (1, 0)}
    assert cache.block_bytes == 10 * 1056 * 2048
    assert cache.request_bytes(10 * 1056, 2048) == 16 * cache.block_bytes
    plain = kv_cache.of(model, 2.0, use=kv_cache.Use(prefix_caching=False))
    assert plain.request_bytes(10 * 1056, 2048) == 13 * cache.block_bytes


def test_a_drafter_with_other_layers_has_a_group_of_its_own() -> None:
    use = kv_cache.Use(architecture.load("qwen3.8-27b-dflash2"), drafted=7)
    cache = kv_cache.of(architecture.load("qwen3.6-27b"), 1.0, use=use)
    # Five layers of the drafter, 16 full ones and 48 with a state: groups of five, and nine states of a sequence.
    assert sorted((group.count, group.states) for group in cache.groups) == [(1, 0), (4, 0), (10, 9)]


def test_experts_in_mxfp4_are_filled_up_on_each_rank() -> None:
    model = memory.model_of(loader.load("gpt-oss-120b").document)
    assert model is not None
    filed = model.architecture.weights()["experts"] * layout.WIDTHS["mxfp4"]
    assert model.loaded_bytes(1)["experts"] / filed == pytest.approx(2944 * 3072 / 2880**2)
    assert 2 * model.loaded_bytes(2)["experts"] / filed == pytest.approx(1536 * 3072 / 1440 / 2880)


@pytest.mark.parametrize(
    ("budget", "advice"),
    [
        ({"utilization": 0.9}, "head`), or lower overrides.memory.utilization."),
        ({"kv_cache_bytes": 100 * GIB}, "head`), or lower overrides.memory.kv_cache_bytes."),
        (
            {"utilization": 0.2, "loading_peak_bytes": 120 * GIB},
            "head`); the peak of loading does not depend on overrides.memory.",
        ),
    ],
)
def test_the_fix_names_what_makes_the_start_smaller(budget: dict[str, Any], advice: str) -> None:
    recipe = of("gemma-4-31b-fp8", memory=budget)
    (refusal,) = memory.too_little_refusal("demo", "spark1", recipe, reference_spark.MEMORY)
    assert refusal.fix.endswith(advice)
    (idle,) = memory.too_little_refusal("demo", "a reference Spark", recipe, reference_spark.MEMORY, reference=True)
    assert idle.fix.endswith(advice.removeprefix("head`)").removeprefix(", or "))
    assert "stop what uses it" not in idle.fix
