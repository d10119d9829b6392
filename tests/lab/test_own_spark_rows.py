"""Factors of an operator's own server: they bring his other rows of it nearer."""

from __future__ import annotations

from statistics import mean

import pytest

from lab.forecast import own_spark

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("operator", "before_at_least"), [("getainode", 0.14), ("huggingface.co", 0.14)])
def test_the_factor_of_every_second_row_brings_the_others_nearer(operator: str, before_at_least: float) -> None:
    """One operator's Spark is slower than the one of the fit; the other's link is."""
    rows = [row for row in own_spark.same_server(operator) if row.metric != own_spark.FIRST]
    assert len(rows) >= 4
    assert mean(abs(row.before) for row in rows) > before_at_least
    assert mean(abs(row.after) for row in rows) < 0.05


def test_the_factors_of_all_operators_halve_the_error() -> None:
    """A fit of seven constants left 7.1 % of the speed and 9.0 % of the first token."""
    rows = [row for operator in own_spark.OPERATORS for row in own_spark.same_server(operator)]
    for first, most in ((False, 0.075), (True, 0.09)):
        some = [row for row in rows if (row.metric == own_spark.FIRST) == first]
        assert mean(abs(row.after) for row in some) < most < mean(abs(row.before) for row in some)
