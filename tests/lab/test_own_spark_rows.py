"""Constants of an operator's own Spark: they bring his other rows of the same server nearer."""

from __future__ import annotations

from statistics import mean

import pytest

from lab.forecast import own_spark


@pytest.mark.parametrize("operator", ["getainode", "huggingface.co"])
def test_constants_of_every_second_row_bring_the_others_nearer(operator: str) -> None:
    """One operator's Spark is slower than the one of the fit; the other's link is."""
    rows = [row for row in own_spark.same_server(operator) if row.metric != own_spark.FIRST]
    before, after = mean(abs(row.before) for row in rows), mean(abs(row.after) for row in rows)
    assert len(rows) >= 4
    assert before > 0.14
    assert after < 0.05
