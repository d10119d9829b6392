"""The memory that a server takes beside its engine's reservation, in the plan and in the gate of a start."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vllm_spark.core.units import GIB
from vllm_spark.recipe import architecture, known_issues, loader
from vllm_spark.sizing import forecast_document, forecast_text, memory, reference_spark, verdict
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest

TOTAL = reference_spark.MEMORY["total"]
PROCESSES = 2 * 1256 * (1 << 20)


def planned(name: str, **overrides: Any) -> tuple[dict[str, Any], Forecast]:
    """Return a recipe with overrides and its forecast on idle Sparks."""
    recipe = loader.merged(loader.load(name), overrides)
    assert not list(loader.merged_faults(recipe, overrides))
    facts = reference_spark.facts(recipe["topology"]["nodes"], 128)
    return recipe, verdict.judged(recipe, facts, ForecastRequest(), ForecastContext(reference=True))


@pytest.mark.parametrize(
    ("args", "needs"),
    [
        ({"kv-offloading-size": 100}, "187.6 GiB with 100.0 GiB of KV cache on the host"),
        ({"cpu-offload-gb": 64}, "151.6 GiB with 64.0 GiB of weights on the host"),
        ({"mm-processor-cache-gb": 60}, ""),
    ],
)
def test_memory_of_the_host_is_memory_of_the_spark(args: dict[str, Any], needs: str) -> None:
    recipe, result = planned("gpt-oss-120b", args=args)
    refused = [refusal.what for refusal in result.refusals if refusal.id == "too-little-memory"]
    assert [what for what in refused if f"gpt-oss-120b needs {needs}, and 8.0 GiB must stay free" in what] == refused
    # The model reads no images, so its server has no cache of them.
    assert bool(refused) == bool(needs)
    text = "\n".join(forecast_text.lines(result, recipe, ForecastRequest()))
    assert bool(re.search(r"\n    (KV cache|weights) on the host +[\d.]+ GiB  \S+\n", text)) == bool(needs)
    assert re.search(r"\n    processes of the server +2\.5 GiB", text)


def test_a_cache_of_images_is_counted_where_images_are_read() -> None:
    _, result = planned("gemma-4-31b-fp8", args={"mm-processor-cache-gb": 60})
    [refusal] = result.refusals
    assert "needs 157.4 GiB with 60.0 GiB of cache of images" in refusal.what
    assert refusal.fix == "lower overrides.args.mm-processor-cache-gb."
    lower, _ = planned("gemma-4-31b-fp8", args={"mm-processor-cache-gb": 1})
    assert not list(memory.too_little_refusal("x", "x", lower, reference_spark.MEMORY))


def test_weights_on_the_host_are_the_same_weights() -> None:
    """The engine holds fewer of them, so its cache grows, and no more are moved than there are."""
    (_, whole), (_, moved), (_, most) = (
        planned("gemma-4-26b-a4b-fp8", args={"cpu-offload-gb": size}) for size in (0, 10, 1000)
    )
    fits = [next(iter(result.fits.values())) for result in (whole, moved, most)]
    assert fits[0].weights - fits[1].weights == 10 * GIB
    assert fits[1].room - fits[0].room == 10 * GIB
    assert (fits[2].weights, fits[2].beside) == (0, fits[0].beside + fits[0].weights)


def test_layers_are_moved_in_groups() -> None:
    args = {"offload-group-size": 6, "offload-num-in-group": 2, "offload-backend": "prefetch"}
    _, result = planned("gemma-4-26b-a4b-fp8", args=args)
    [part] = [part for fit in result.fits.values() for part in fit.parts if part.weights]
    model = memory.model_of(loader.load("gemma-4-26b-a4b-fp8").document)
    assert model
    loaded = model.loaded_bytes(1)
    assert part.bytes == pytest.approx((loaded["attention"] + loaded["mlp"] + loaded["experts"] + loaded["router"]) / 3)


def test_an_adapter_is_as_large_as_its_matrices() -> None:
    """Of the 31B: q, k, v, o and the three matrices of an MLP, in 50 sliding and 10 full layers."""
    shape, hidden, width = architecture.load("gemma-4-31b"), 5376, 21504
    layers = {50: (32 * 256, 16 * 256), 10: (32 * 512, 4 * 512)}
    attention = sum(count * (2 * (hidden + q) + 2 * (hidden + kv)) for count, (q, kv) in layers.items())
    assert shape.adapter_weights() == attention + 60 * 3 * (hidden + width)
    experts = architecture.load("gemma-4-26b-a4b")
    assert experts.adapter_weights() > 30 * 128 * 3 * (2816 + 704)


def test_adapters_take_cache_and_memory_of_the_host() -> None:
    lora = {"enable-lora": True, "max-loras": 4, "max-cpu-loras": 8, "max-lora-rank": 64}
    (_, without), (recipe, with_lora) = (planned("gemma-4-31b-fp8", args=args) for args in ({}, lora))
    [plain], [fit] = without.fits.values(), with_lora.fits.values()
    adapter = architecture.load("gemma-4-31b").adapter_weights() * 64 * 2
    assert plain.room - fit.room == 4 * adapter
    assert fit.beside - plain.beside == 8 * adapter
    entry = forecast_document.of_forecast(with_lora, recipe, ForecastRequest(), None)["memory"][0]
    assert entry["beside_bytes"] == fit.beside
    assert {"what": "slots of LoRA adapters", "setting": "args.max-loras", "bytes": 4 * adapter, "reserved": True} in (
        entry["parts"]
    )


def test_a_row_is_shown_only_with_an_amount() -> None:
    recipe, result = planned("gemma-4-26b-a4b-fp8")
    rows = [line.strip() for line in forecast_text.lines(result, recipe, ForecastRequest()) if line.startswith("    ")]
    assert [re.split(r" {2,}", row)[0] for row in rows] == [
        "weights", "activations and CUDA graphs", "cache", "reserved by the engine", "processes of the server",
        "kept free for the host", "available on a fresh Spark",
    ]  # fmt: skip


def test_an_amount_that_is_not_known_permits_nothing() -> None:
    config = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    _, result = planned("gpt-oss-120b", args={"kv-transfer-config": config})
    assert not result.go
    assert result.verdict == "unknown"
    assert any("KV cache on the host is not known" in note for note in result.notes)


DEEPSEEK = "deepseek-v4-flash-tp2"


def test_the_engine_asks_for_its_share_although_the_cache_has_bytes() -> None:
    """Measured with vLLM 0.20.2: at 0.92 a server of 11 GiB did not start beside another one (v1/worker/utils.py)."""
    recipe = loader.load(DEEPSEEK).document
    assert (recipe["memory"]["utilization"], "kv_cache_bytes" in recipe["memory"]) == (0.85, True)
    processes = PROCESSES * 3 // 2
    assert memory.required_bytes(recipe, TOTAL) == pytest.approx(0.85 * TOTAL + processes, abs=1)
    held = memory.needed_bytes(recipe, TOTAL) + memory.floor_bytes(recipe)
    assert held / GIB == pytest.approx(101.7, abs=0.1)
    share = {**recipe, "memory": {**recipe["memory"], "utilization": 0.05}}
    assert memory.required_bytes(share, TOTAL) == pytest.approx(held, abs=1)
    without = {**recipe, "memory": {key: value for key, value in recipe["memory"].items() if key != "utilization"}}
    assert memory.required_bytes(without, TOTAL) == pytest.approx(0.92 * TOTAL + processes, abs=1)


def test_a_start_that_the_engine_would_refuse_names_a_share_that_it_takes() -> None:
    recipe = loader.load(DEEPSEEK)
    facts: Any = {"total": TOTAL, "available": 104 * GIB}
    [refusal] = memory.too_little_refusal("demo", "spark1", recipe.document, facts)
    assert "demo needs 94.7 GiB with its memory.kv_cache_bytes" in refusal.what
    assert "unless 0.85 of the memory is free beside its processes" in refusal.what
    advised = re.search(r"overrides\.memory\.utilization: (0\.\d+)", refusal.fix)
    assert advised
    fixed = loader.merged(recipe, {"memory": {"utilization": float(advised[1])}})
    assert not list(memory.too_little_refusal("demo", "spark1", fixed, facts))
    assert not list(known_issues.refusals(known_issues.of_closed(fixed), ()))


@pytest.mark.parametrize("name", loader.names([loader.paths.RECIPES]))
def test_no_recipe_of_the_catalogue_is_too_large_for_an_idle_spark(name: str) -> None:
    assert not list(memory.too_little_refusal(name, "x", loader.load(name).document, reference_spark.MEMORY))
