"""`recipe new` on each public configuration of a mirror: the recipe that the published size asks for, or a refusal."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from lab.forecast.published_files import Published
from vllm_spark.authoring import composing, dimensions, family, new_recipe
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.new_recipe import NewRecipe, Order
from vllm_spark.core import documents, paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.units import GB
from vllm_spark.recipe import architecture
from vllm_spark.sizing import forecast

pytestmark = pytest.mark.slow
DATA = paths.ROOT / "tests" / "data"
MIRRORED: list[dict[str, Any]] = documents.read_yaml(DATA / "public-configs.yml")
OTHERS: list[dict[str, Any]] = documents.read_yaml(DATA / "public-configs-new.yml")
ROWS = [*MIRRORED, *OTHERS]
BY_MODEL = {row["model"]: row for row in ROWS}
# What one Spark gives to weights, in bytes: 80 % of the 121.7 GiB that its system counts.
ONE_SPARK = 0.8 * 121.7 * 2**30
TOO_LARGE = {"does-not-fit", "no-room-for-the-cache"}
# Refusals before the dimensions are read.
UNREAD = {"unknown-family", "needs-remote-code", "another-task"}
# Open fields with which a forecast is possible.
NEVER_BLOCKING = {"args.chat-template", "model.size_bytes"}
CATALOGUE = forecast.catalogue([paths.RECIPES])


@cache
def result(name: str) -> NewRecipe | RefusedError:
    order = Order(Request(composing.recipe_name(name)), node_memory_gb=128)
    try:
        return new_recipe.write(
            Published(name, BY_MODEL[name]["config"], BY_MODEL[name].get("beside", {})), order, CATALOGUE
        )
    except RefusedError as error:
        return error


def test_the_mirror_has_86_models_and_thirty_are_of_other_families() -> None:
    assert (len(MIRRORED), len(OTHERS)) == (86, 30)
    assert len(BY_MODEL) == len(ROWS)
    assert not {row["config"]["model_type"] for row in MIRRORED} & {row["config"]["model_type"] for row in OTHERS}


@pytest.mark.parametrize("name", BY_MODEL)
def test_a_configuration_gives_what_is_expected(name: str) -> None:
    new = result(name)
    if isinstance(new, RefusedError):
        found: dict[str, Any] = {"refused": sorted({refusal.id for refusal in new.refusals})}
    else:
        fields = {question.field.partition(" ")[0] for question in new.questions}
        found = {"nodes": new.recipe["topology"]["nodes"], "open": sorted(fields)}
        found |= {"role": new.recipe["role"]} if "role" in new.recipe else {}
    assert found == BY_MODEL[name]["expected"]


@pytest.mark.parametrize("name", BY_MODEL)
def test_the_published_size_asks_for_as_many_sparks(name: str) -> None:
    """The number of weights is the publisher's, and the width is that of the name."""
    row = BY_MODEL[name]
    size, expected = row["billions"] * GB * row["bits"] / 8, row["expected"]
    if "nodes" in expected:
        assert (expected["nodes"] - 1) * ONE_SPARK < size < expected["nodes"] * ONE_SPARK
    elif set(expected["refused"]) & TOO_LARGE:
        assert size > 2 * ONE_SPARK
    else:
        assert set(expected["refused"]) <= UNREAD


# A model of another role than chat needs no family.
CHATS = [row for row in ROWS if "role" not in row["expected"]]
KNOWN = [row["model"] for row in CHATS if not UNREAD & set(row["expected"].get("refused", ()))]


@pytest.mark.parametrize("name", KNOWN)
def test_the_dimensions_give_the_published_number_of_weights(name: str) -> None:
    config = BY_MODEL[name]["config"]
    found = dimensions.read(config, family.of_config(name, config)["architecture"])
    assert all("what is a layer of the kind" in question for question in found.questions)
    if not found.questions:
        built = architecture.from_document({**found.document, "name": "x", "family": "y"})
        assert sum(built.weights().values()) / 1e9 == pytest.approx(BY_MODEL[name]["billions"], rel=0.012)


@pytest.mark.parametrize("name", [row["model"] for row in CHATS if "nodes" in row["expected"]])
def test_a_recipe_has_no_more_than_its_configuration_says(name: str) -> None:
    new, row = result(name), BY_MODEL[name]
    assert isinstance(new, NewRecipe)
    config = {**row["config"], **row["config"].get("text_config", {})}
    assert new.recipe["args"].get("max-model-len", 0) <= config["max_position_embeddings"]
    assert ("architecture" in new.recipe["model"]) == (set(row["expected"]["open"]) <= NEVER_BLOCKING)
