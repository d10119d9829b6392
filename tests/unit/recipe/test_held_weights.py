"""The layout of a recipe and the flags that decide about its weights."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.recipe import engine_flags, held_weights, loader, rules
from vllm_spark.sizing import memory, reference_spark, verdict
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest
from vllm_spark.sizing.layout import WIDTHS

PLAIN = {"attention": "bf16", "mlp": "bf16", "head": "bf16"}


def document(
    flag: object = None,
    *,
    files: dict[str, Any] | None = None,
    layout: dict[str, Any] | None = None,
    version: str = "0.30.0",
    **args: object,
) -> dict[str, Any]:
    """Return what the rule reads of a recipe. `files` are the checkpoint, if the recipe names one."""
    model = {"layout": layout or files or PLAIN, **({"checkpoint": files} if files else {})}
    named = {name.replace("_", "-"): value for name, value in args.items()}
    return {
        "model": model,
        "engine": {"version": version},
        "args": named | ({"quantization": flag} if flag is not None else {}),
        "memory": {"utilization": 0.5},
    }


def held(recipe: dict[str, Any]) -> str:
    """Return the layout, or what is expected of a fault."""
    changed = {**recipe, "expected": []}
    held_weights.overridden(
        changed, {**recipe, "args": {}, "model": {"layout": {"attention": "nvfp4", "head": "bf16"}}}
    )
    if faults := list(held_weights.faults(changed)):
        return faults[0].expected
    return " ".join(f"{part}={width}" for part, width in changed["model"].get("layout", {"nothing": "known"}).items())


MOE = {"attention": "bf16", "experts": "bf16", "head": "bf16"}
NVFP4 = {"attention": "bf16", "mlp": "nvfp4", "head": "bf16"}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (document(files=PLAIN), "attention=bf16 mlp=bf16 head=bf16"),
        (document("fp8", files=PLAIN), "attention=fp8 mlp=fp8 head=bf16"),
        (document("fp8", files=PLAIN, version="0.31.0"), "fp8_per_tensor"),
        (document("fp8_per_tensor", files=PLAIN, version="0.31.0"), "attention=fp8 mlp=fp8 head=bf16"),
        (document("fp8_per_block", files=PLAIN), "attention=fp8-block mlp=fp8-block head=bf16"),
        (document("mxfp8", files=PLAIN, version="0.19.1"), "attention=mxfp8 mlp=mxfp8 head=bf16"),
        (document("mxfp4", files=PLAIN), "attention=mxfp4 mlp=mxfp4 head=bf16"),
        (document("experts_int8", files=MOE), "attention=bf16 experts=int8 head=bf16"),
        (document("nvfp4_per_token", files=MOE), "attention=bf16 experts=nvfp4 head=bf16"),
        (document(files=MOE, quantization_config={"moe": "mxfp8"}), "attention=bf16 experts=mxfp8 head=bf16"),
        (
            document(files=MOE, **{"quantization-config.linear": "fp8_per_tensor"}),
            "attention=fp8 experts=bf16 head=bf16",
        ),
        (document(files=MOE, quantization_config='{"moe": "mxfp8", "ignore": ["re:.*"]}'), "nothing=known"),
        (document(files=MOE, quantization_config={"targets": {"re:.*": "mxfp8"}}), "nothing=known"),
        (document(files=MOE, quantization_config={"linear": {"weight": "mxfp8"}}), "nothing=known"),
        (document(files=NVFP4), "attention=bf16 mlp=nvfp4 head=bf16"),
        (document("modelopt", files=NVFP4), "attention=bf16 mlp=nvfp4 head=bf16"),
        (document("humming", files=NVFP4), "attention=bf16 mlp=nvfp4 head=bf16"),
        (document(files=NVFP4, quantization_config={"linear": "mxfp8"}), "attention=mxfp8 mlp=nvfp4 head=bf16"),
        (document(files=NVFP4, version="0.28.0", quantization_config={"linear": "mxfp8"}), "nothing=known"),
        (document("fp8_per_tensor", files=NVFP4), "no args.quantization"),
        (document("torchao", files=PLAIN), "nothing=known"),
        (document("a-method-of-a-fork", files=PLAIN), "nothing=known"),
        (document(files=PLAIN, dtype="float32"), "nothing=known"),
        (document(files=PLAIN, hf_overrides={"quantization_config": {"quant_method": "fp8"}}), "nothing=known"),
        (document(files=PLAIN, moe_backend="emulation"), "nothing=known"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_flag_decides_what_the_engine_holds(recipe: dict[str, Any], expected: str) -> None:
    assert held(recipe) == expected


@pytest.mark.parametrize("method", ["awq", "modelopt", "compressed-tensors", "gptq_marlin"])
def test_a_method_of_quantised_files_finds_none_in_files_of_16_bits(method: str) -> None:
    [fault] = held_weights.faults(document(method, files=PLAIN))
    assert fault.what == f"args.quantization: {method}, and the files are bf16"
    assert "fp8_per_tensor" in fault.expected


def test_a_layout_that_no_flag_makes_is_a_fault() -> None:
    stated = {"attention": "fp8", "mlp": "fp8", "head": "bf16"}
    [fault] = rules.value_faults(document(files=PLAIN, layout=stated, version="0.21.0"))
    assert fault.what == (
        "model.layout: attention fp8, mlp fp8; no flag quantises the files, which leaves attention bf16, mlp bf16"
    )
    assert fault.expected == "args.quantization: fp8, or model.layout: attention bf16, mlp bf16"
    [fault] = rules.value_faults(document("mxfp8", files=PLAIN, layout=stated))
    assert fault.what.endswith("attention fp8, mlp fp8; the flags make attention mxfp8, mlp mxfp8")
    [fault] = rules.value_faults(document("fp8", layout=PLAIN))
    assert fault.expected == "no args.quantization, or model.layout: attention fp8, mlp fp8"
    assert not list(rules.value_faults(document("fp8", files=PLAIN, layout=stated)))


def test_the_drafter_has_a_quantisation_of_its_own() -> None:
    recipe = {**document(files=NVFP4), "drafter": {"config": {"quantization": "fp8"}}}
    [fault] = held_weights.faults(recipe)
    assert (fault.what, fault.expected) == (
        "model.layout: drafter bf16; the flags make drafter fp8",
        "model.layout: drafter fp8",
    )


def plan(name: str, overrides: dict[str, Any]) -> tuple[dict[str, Any], Forecast]:
    recipe = loader.load(name)
    merged = loader.merged(recipe, overrides)
    assert not list(loader.merged_faults(merged, overrides))
    facts = reference_spark.facts(merged["topology"]["nodes"], 128)
    return merged, verdict.judged(merged, facts, ForecastRequest(), ForecastContext(reference=True))


def test_an_override_that_leaves_the_weights_in_bf16_is_planned_as_bf16() -> None:
    """The engine logged 57.82 GiB without the tower, and report 003 has 3.7 tok/s of the 31B in BF16."""
    with_flag, without = (
        plan("gemma-4-31b-fp8", {"args": args}) for args in ({"max-num-seqs": 5}, {"quantization": None})
    )
    assert "expected" in with_flag[0]
    assert "expected" not in without[0]
    [fit] = without[1].fits.values()
    assert fit.weights / 2**30 == pytest.approx(57.82 + 1.07, abs=0.2)
    assert without[1].prediction is not None
    assert without[1].prediction.slow.tokens_per_s == pytest.approx(3.7, rel=0.1)
    assert not any(note.startswith("reported") for note in without[1].notes)


def test_a_measured_peak_of_loading_belongs_to_the_weights_that_were_measured() -> None:
    recipe = loader.load("gemma-4-31b-fp8")
    measured = loader.Recipe({**recipe.document, "memory": {"utilization": 0.5, "loading_peak_bytes": 10}})
    assert "loading_peak_bytes" in loader.merged(measured, {"args": {"max-num-seqs": 5}})["memory"]
    assert "loading_peak_bytes" not in loader.merged(measured, {"args": {"quantization": "mxfp8"}})["memory"]
    own = loader.merged(measured, {"args": {"quantization": "mxfp8"}, "memory": {"loading_peak_bytes": 20}})
    assert own["memory"]["loading_peak_bytes"] == 20


def test_weights_of_an_unknown_width_have_no_prediction() -> None:
    merged, result = plan("gemma-4-31b-fp8", {"args": {"quantization": "torchao"}})
    assert result.verdict == "unknown"
    assert "the flags of recipe gemma-4-31b-fp8 load its weights at widths that are not known" in " ".join(result.notes)
    assert memory.file_bytes(merged) == 62580000000


def test_an_override_that_the_engine_refuses_is_a_fault() -> None:
    recipe, overrides = loader.load("gemma-4-31b-nvfp4"), {"args": {"quantization": "fp8_per_tensor"}}
    [fault] = loader.merged_faults(loader.merged(recipe, overrides), overrides)
    assert fault.what == "args.quantization: fp8_per_tensor, and model.layout has files that are quantised"


@pytest.mark.parametrize("version", engine_flags.versions())
def test_every_method_of_an_engine_has_its_place(version: str) -> None:
    """A new method is red here until somebody has read what it makes of weights."""
    table = held_weights.table()
    known = {*table["online"], *table["advance"], *table["either"], "online"}
    assert set(engine_flags.load(version).flags["quantization"].later) <= known


def test_the_widths_of_the_table_are_those_of_layouts() -> None:
    rows = held_weights.table()["online"].values()
    assert {row[kind] for row in rows for kind in ("linear", "experts") if kind in row} <= set(WIDTHS)


@pytest.mark.parametrize(
    ("args", "loads"),
    [
        ({}, True),
        ({"language-model-only": True}, False),
        ({"limit-mm-per-prompt": {"image": 0, "video": 0}}, False),
        ({"limit-mm-per-prompt": '{"image": 0, "video": 0}'}, False),
        ({"limit-mm-per-prompt": {"image": 0}}, True),
    ],
)
def test_a_limit_of_no_images_leaves_the_tower_out(args: dict[str, Any], loads: bool) -> None:
    assert memory.loads_towers(args) is loads


def test_experts_in_mxfp4_are_as_large_as_their_kernels_need() -> None:
    recipe = loader.load("gpt-oss-120b").document
    sizes = {}
    for backend in ("marlin", "flashinfer_cutlass", "triton", "b12x"):
        model = memory.model_of({**recipe, "args": {**recipe["args"], "moe-backend": backend}})
        assert model
        sizes[backend] = model.loaded_bytes(1)["experts"]
    assert sizes["marlin"] / sizes["b12x"] == pytest.approx(3072 / 2880 * 2944 / 2880)
    assert sizes["b12x"] == sizes["triton"] < sizes["flashinfer_cutlass"] < sizes["marlin"]
