"""Recipes of published images that are not vLLM's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark.recipe import engine_arguments, flag_names, loader, published_image
from vllm_spark.sizing import catalogue

NAMES = sorted(
    name for name in loader.names([paths.RECIPES]) if published_image.is_published(loader.load(name).document)
)


def document() -> dict[str, Any]:
    return copy.deepcopy(dict(loader.load("deepseek-v4-flash-tp2").document))


def unknown(recipe: dict[str, Any]) -> list[str]:
    engine = flag_names.engine_of(recipe["engine"]["version"])
    return [fault.what for fault in engine_arguments.faults(recipe, engine)]


def test_the_catalogue_has_such_recipes() -> None:
    assert "deepseek-v4-flash-tp2" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_table_says_so(name: str) -> None:
    recipe = loader.load(name).document
    assert published_image.LABEL in recipe["summary"]
    owner = recipe["image"]["repository"].split("/")[-2]
    assert catalogue.cells(next(one for one in catalogue.entries() if one.name == name))[4] == f"{owner}'s image"


def test_a_release_has_its_version() -> None:
    assert published_image.engine(loader.load("gpt-oss-20b").document) == "0.30.0"


def test_variables_of_such_an_image_are_not_judged_by_a_release() -> None:
    recipe = document()
    assert unknown(recipe) == []
    del recipe["image"]["published"]
    assert "env.VLLM_USE_B12X_MOE: unknown variable, which the engine ignores" in unknown(recipe)


def test_a_flag_that_no_release_has_is_refused_all_the_same() -> None:
    recipe = document()
    recipe["args"]["not-a-flag"] = True
    assert unknown(recipe) == ["args.not-a-flag: unknown flag"]
