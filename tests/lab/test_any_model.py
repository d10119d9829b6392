"""`recipe new` for models that owners run, and its forecast beside public figures."""

from __future__ import annotations

import pytest

from lab.forecast import any_model
from lab.forecast.any_model import Result

RESULTS = any_model.results()
FORECAST = [one for one in RESULTS if one.speed]


def test_there_are_twenty_models_with_a_forecast() -> None:
    assert len({one.model for one in FORECAST}) >= 20


@pytest.mark.parametrize("one", FORECAST, ids=lambda one: one.model)
def test_nothing_is_open_but_the_template(one: Result) -> None:
    assert "open" not in one.made
    assert one.source


def test_four_of_five_forecasts_are_within_15_percent() -> None:
    near = [one for one in FORECAST if one.error is not None and abs(one.error) <= 0.15]
    assert len(near) >= 0.8 * len(FORECAST)


@pytest.mark.parametrize("one", [one for one in RESULTS if not one.speed], ids=lambda one: one.model)
def test_a_model_without_a_forecast_says_why(one: Result) -> None:
    assert one.made.startswith("refused: ") or "; open: architecture" in one.made
