"""`recipe new` for models that owners run, and its forecast beside public figures."""

from __future__ import annotations

import pytest

from lab.forecast import any_model
from lab.forecast.any_model import Result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return any_model.results()


@pytest.fixture(scope="module")
def forecast(results: list[Result]) -> list[Result]:
    return [one for one in results if one.speed]


def test_there_are_twenty_models_with_a_forecast(forecast: list[Result]) -> None:
    assert len({one.model for one in forecast}) >= 20


def test_nothing_is_open_but_the_template(forecast: list[Result]) -> None:
    assert [(one.model, one.made) for one in forecast if "open" in one.made or not one.source] == []


def test_four_of_five_forecasts_are_within_15_percent(forecast: list[Result]) -> None:
    near = [one for one in forecast if one.error is not None and abs(one.error) <= 0.15]
    assert len(near) >= 0.8 * len(forecast)


def test_a_model_without_a_forecast_says_why(results: list[Result]) -> None:
    without = [one for one in results if not one.speed]
    silent = [one for one in without if not (one.made.startswith("refused: ") or "; open: architecture" in one.made)]
    assert without
    assert [(one.model, one.made) for one in silent] == []
