"""Licences: every model of the catalogue has one, and `plan` names it before a download."""

from __future__ import annotations

import re

import pytest

from vllm_spark.core import paths
from vllm_spark.recipe import licences, loader
from vllm_spark.sizing import forecast, forecast_text, reference_spark
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest

NAMES = loader.names([paths.RECIPES])


@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_the_catalogue_has_a_licence(name: str) -> None:
    found = list(licences.lines(loader.load(name).document))
    assert found
    assert not [line for line in found if "not known here" in line]


def test_every_row_has_a_source_and_a_model_of_its_own() -> None:
    for row in licences.rows():
        assert set(row) <= {"models", "licence", "terms", "source"}
        assert re.compile(row["models"])
        assert row["source"]


def test_terms_that_limit_the_use_are_named() -> None:
    assert licences.of("nvidia/MiniMax-M2.7-NVFP4") == "MiniMax-M2.7 License. Not for commercial use."
    assert licences.of("unsloth/gemma-4-31B-it-NVFP4") == "Apache-2.0"


def test_the_licence_of_the_publisher_counts_before_that_of_the_model() -> None:
    assert licences.of("local-inference-lab/Qwen3.8-Flash-Next-NVFP4").startswith("Local Inference Lab License")


def test_an_unknown_model_has_the_address_of_its_page() -> None:
    assert licences.of("owner/name") == "not known here, see huggingface.co/owner/name"


def test_a_drafter_of_the_model_itself_is_not_named_twice() -> None:
    recipe = {"model": {"repository": "a/b"}, "drafter": {"repository": "a/b"}}
    assert len(list(licences.lines(recipe))) == 1


@pytest.mark.parametrize("name", ["minimax-m2.7-nvfp4-tp2", "gemma-4-31b-fp8"])
def test_plan_prints_the_licence_below_the_download(name: str) -> None:
    recipe = loader.load(name).document
    facts = reference_spark.facts(recipe["topology"]["nodes"], 128)
    result = forecast.forecast(name, recipe, facts, ForecastRequest(), ForecastContext(reference=True))
    printed = forecast_text.lines(result, recipe, ForecastRequest())
    place = next(number for number, line in enumerate(printed) if line.startswith("  download: "))
    assert printed[place + 1].startswith(f"  licence of {recipe['model']['repository']}: ")
