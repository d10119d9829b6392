"""The question before a download."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from vllm_spark.core import paths
from vllm_spark.deploy import consent
from vllm_spark.deploy.images import ImageSteps
from vllm_spark.deploy.plan import Plan
from vllm_spark.deploy.preview import Preview
from vllm_spark.inventory import spec
from vllm_spark.inventory.spec import Inventory, Spec
from vllm_spark.sizing.forecast import Forecast

HOSTS = ("spark1", "spark2")
NAME = "gemma-4-31b-nvfp4-tp2-mtp"


@pytest.fixture
def pair() -> dict[str, Spec]:
    deployments = [{"name": "big", "recipe": NAME, "hosts": list(HOSTS)}]
    inventory = Inventory(deployments=deployments, sparks=HOSTS, limit=HOSTS, recipe_folders=(paths.RECIPES,))
    return {host: cast("Spec", spec.resolve(inventory, host)) for host in HOSTS}


def foreseen(size: int, *, known: bool = True) -> Forecast:
    return Forecast("big", HOSTS, {}, None, None, size, [], [], download_known=known)


def previews(pair: dict[str, Spec], forecast: Forecast, pulls: list[Any]) -> dict[str, Preview]:
    plans = {host: Plan(images=ImageSteps(pulls=pulls)) for host in HOSTS}
    both = {host: Preview([], [], pair[host], plans[host]) for host in HOSTS}
    return {**both, "spark1": replace(both["spark1"], forecast=forecast), "spark3": Preview(["idle"], [])}


def test_a_model_and_an_image_of_a_pair_come_once_from_the_internet(pair: dict[str, Spec]) -> None:
    text = consent.download(previews(pair, foreseen(20_000_000_000), [{}]))
    assert text == (
        f"To download: 20.0 GB for the model of {NAME} and the image vllm/vllm-openai. "
        "The 20.0 GB take 02:40 at 1 Gbit/s, 26:40 at 100 Mbit/s."
    )


def test_an_unknown_size_is_no_number(pair: dict[str, Spec]) -> None:
    assert consent.download(previews(pair, foreseen(0, known=False), [])) == f"To download: the model of {NAME}."


def test_nothing_is_asked_if_everything_is_there(pair: dict[str, Spec]) -> None:
    assert consent.download(previews(pair, foreseen(0), [])) == ""


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y", True), (" YES ", True), ("", False), ("no", False), ("yess", False)]
)
def test_answers(answer: str, agreed: bool) -> None:
    assert consent.agrees(answer) is agreed
