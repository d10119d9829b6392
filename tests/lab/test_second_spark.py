"""The table of what a second Spark brings, and the advice of `plan` beside README's recipes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lab.pages import second_spark, where_to_begin
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.sizing import forecast, reference_spark, uses, verdict
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest
from vllm_spark.sizing.uses import Use

pytestmark = pytest.mark.slow
PAGE = paths.ROOT / "docs/operations/choose-a-recipe.md"
PINNED = {document["name"]: document for document in where_to_begin.pinned()}
CATALOGUE = forecast.catalogue([paths.RECIPES])
# The page names the models for which `init` proposes another recipe, and says why.
NOT_PROPOSED = re.findall(r"no forecast for\s+(\S+), so `init` does not propose it", PAGE.read_text(encoding="utf-8"))
BEST = [(use, nodes) for use in uses.USES for nodes in (1, 2)]


def best(use: Use, nodes: int) -> tuple[Mapping[str, Any], Document]:
    """Return the figure and the recipe of a row of README's first table."""
    found = where_to_begin.best(list(PINNED.values()), use, nodes)
    assert found
    return found[0], PINNED[found[1]]


def judged(recipe: Document, streams: int, catalogue: Sequence[Document] = ()) -> Forecast:
    """Return the forecast of a recipe on as many reference Sparks as it has."""
    facts = reference_spark.facts(recipe["topology"]["nodes"], 128)
    return verdict.judged(recipe, facts, ForecastRequest(streams=streams), ForecastContext(catalogue=catalogue))


def test_the_page_has_the_table_of_today() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert second_spark.page(text) == text
    with pytest.raises(ValueError, match="has no lines"):
        second_spark.page("# Title\n")


def test_a_second_spark_helps_a_dense_model_most_as_owners_measured() -> None:
    """kelnei's pairs: Gemma 31B 1.8 times one Spark, Qwen3.6-35B 0.8 times."""
    dense = dict(second_spark.measured("gemma-4-31b", 1))["kelnei, no drafter"]
    narrow = dict(second_spark.measured("qwen3.6-35b-a3b", 1))["kelnei"]
    assert narrow < 1
    assert dense > 1.5
    assert second_spark.measured("gemma-4-31b", 7) == []


def test_only_a_recipe_of_several_sparks_is_too_large_for_one() -> None:
    large = {name for name, document in PINNED.items() if second_spark.is_too_large(document)}
    assert "minimax-m2.7-nvfp4-tp2" in large
    assert not large & {"gemma-4-31b-nvfp4-tp2-mtp", "qwen3.6-35b-a3b-fp8"}


@pytest.mark.parametrize(("use", "nodes"), BEST, ids=lambda one: one.word if isinstance(one, Use) else str(one))
def test_plan_recommends_no_other_recipe_of_the_use_instead(use: Use, nodes: int) -> None:
    """What `plan` calls better has not the gates of the use, or its figure is lower."""
    figure, recipe = best(use, nodes)
    for line in judged(recipe, use.streams, CATALOGUE).better:
        other = PINNED.get(line.partition(":")[0])
        reported = uses.figure_of(other, use.streams) if other and uses.has_gates(other, use) else None
        assert not reported or reported["value"] <= figure["value"], line


@pytest.mark.parametrize(("name", "streams"), second_spark.compared_recipes(list(PINNED.values())))
def test_the_table_promises_no_speed_of_a_pair_that_plan_refuses(name: str, streams: int) -> None:
    """The 26B with its drafter does not start on two Sparks with vLLM 0.30 (kelnei/vllm-gemma4)."""
    assert "drafter" in PINNED[name], "the mark `no drafter` says how the measurement differs from the recipe"
    result = judged(second_spark.as_pair(PINNED[name]), streams)
    row = next(line for line in second_spark.written(list(PINNED.values())).splitlines() if f"`{name}`" in line)
    assert ("times as fast" in row or "not known before" in row) == result.go, [str(one) for one in result.refusals]
    assert ("refused" in row) == (not result.go)


@pytest.mark.parametrize(("use", "nodes"), BEST, ids=lambda one: one.word if isinstance(one, Use) else str(one))
def test_init_proposes_the_recipe_of_the_readme_unless_it_has_no_forecast(use: Use, nodes: int) -> None:
    _, recipe = best(use, nodes)
    proposed = uses.fitting(list(PINNED.values()), use, [reference_spark.facts(nodes, 128)])[0].name
    if proposed != recipe["name"]:
        known = judged(recipe, use.streams)
        assert not known.refusals
        assert known.prediction is None
        assert recipe["model"]["repository"].partition("/")[2].removesuffix("-NVFP4") in NOT_PROPOSED
