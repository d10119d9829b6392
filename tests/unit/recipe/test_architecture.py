"""Architectures of every kind that a file can express, against what is published of them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from vllm_spark.core import paths, schema
from vllm_spark.recipe import architecture
from vllm_spark.sizing import kv_cache, layout

CASES = yaml.load((paths.ROOT / "tests" / "cases" / "architectures.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
WRAPPER = {"schema_version": 1, "name": "a-model", "family": "a-family", "summary": "an architecture of a test"}


def document(case: dict[str, Any]) -> dict[str, Any]:
    return {**WRAPPER, **case["document"], "sources": {"hidden": "config.json of the model"}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_weights_cache_and_state_are_the_published_ones(case: dict[str, Any]) -> None:
    content = document(case)
    assert list(schema.faults(content, architecture.FOLDER / "schema.json")) == []
    model = architecture.from_document(content)
    assert sum(model.stored_weights().values()) / 1e9 == pytest.approx(case["weights"], rel=0.03)
    assert (model.layers, model.reductions) == (case["layers"], case["reductions"])
    if "active" in case:
        assert model.active / 1e9 == pytest.approx(case["active"], rel=0.03)
    if "state" in case:
        assert sum(group.layers * group.state() for group in model.attention) == case["state"]
    if "token" in case:
        assert (
            sum(group.layers * group.token_bytes(1.0) for group in model.attention if not group.window) == case["token"]
        )


def test_a_latent_cache_is_whole_on_each_rank() -> None:
    model = architecture.from_document(document(CASES[0]))
    assert kv_cache.of(model, 1.0, 2).block_bytes == kv_cache.of(model, 1.0, 1).block_bytes


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"kind": "full", "layers": 2, "heads": 4, "head_size": 64}, "kv_heads"),
        ({"kind": "mla", "layers": 2, "heads": 4, "kv_heads": 4}, "kv_heads"),
        ({"kind": "mamba-2", "layers": 2, "heads": 4, "head_size": 64}, "groups"),
        ({"kind": "hyena", "layers": 2}, "hyena"),
    ],
)
def test_a_field_that_is_missing_or_of_another_kind_is_named(change: dict[str, Any], fault: str) -> None:
    content = document(CASES[0]) | {"attention": [change]}
    faults = [f"{found.what} {found.expected}" for found in schema.faults(content, architecture.FOLDER / "schema.json")]
    assert faults
    assert any(fault in text for text in faults)


def test_a_layout_names_one_width_per_layer_and_part() -> None:
    widths = layout.widths({"attention": "fp8", "mlp": "bf16", "experts": {"nvfp4": 22, "fp8": 8}, "head": "bf16"})
    assert widths["linear"] == widths["attention"] == 1.0
    assert widths["shared"] == 2.0
    assert widths["experts"] == pytest.approx((22 * 0.5625 + 8) / 30)
    assert layout.WIDTHS["mxfp4"] < layout.WIDTHS["nvfp4"] < layout.WIDTHS["int4-g32"]
    assert 1 < layout.WIDTHS["fp8-block"] < 1.001
