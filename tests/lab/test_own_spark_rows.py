"""Factors of an operator's own server: they bring his other rows of it nearer."""

from __future__ import annotations

import pytest

from lab.forecast import judge, own_spark
from vllm_spark.sizing import constants

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures() -> own_spark.Figures:
    return own_spark.figures()


def test_the_factor_of_a_slow_spark_brings_its_other_rows_nearer(figures: own_spark.Figures) -> None:
    before, after = ([one for one in some if one.operator == "getainode"] for some in figures[own_spark.SPEED])
    assert len(before) >= 4
    assert judge.quantile(before, 0.5) > 0.14
    assert judge.quantile(after, 0.5) < 0.05


@pytest.mark.parametrize("kind", [own_spark.SPEED, own_spark.FIRST])
def test_the_interval_beside_an_own_factor_is_that_of_other_loads(kind: str, figures: own_spark.Figures) -> None:
    """It is narrower than without the factor."""
    before, after = figures[kind]
    held = constants.spark()["own"][kind]
    assert held["operators"] == len(judge.by_operator(after))
    assert held["spread"] == pytest.approx(judge.quantile(after, constants.HOLDS), abs=0.015)
    assert held["median"] == pytest.approx(judge.quantile(after, 0.5), abs=0.01)
    assert held["spread"] < judge.quantile(before, constants.HOLDS)
