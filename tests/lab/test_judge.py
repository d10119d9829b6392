"""The judgement of the forecast on operators, each counted once."""

from __future__ import annotations

import pytest

from lab.forecast import judge, measured_rows
from lab.forecast.judge import DRAFTER, FIRST, ONE, Judged


def figures(kind: str = ONE, **ratios: list[float]) -> list[Judged]:
    return [Judged(operator, kind, ratio, 0.2) for operator, some in ratios.items() for ratio in some]


MANY_OF_ONE = figures(a=[1.0] * 50, b=[1 / 1.3], c=[1 / 1.4])


def test_an_operator_with_many_rows_counts_as_one_with_a_single_row() -> None:
    assert judge.quantile(MANY_OF_ONE, 1 / 3) == 0
    assert judge.quantile(MANY_OF_ONE, 0.5) == pytest.approx(0.3)
    assert judge.quantile(MANY_OF_ONE, 0.9) == pytest.approx(0.4)
    assert judge.coverage(MANY_OF_ONE) == pytest.approx(1 / 3)
    assert judge.coverage(MANY_OF_ONE, 0.35) == pytest.approx(2 / 3)


def test_an_operator_is_judged_by_the_width_of_the_others() -> None:
    """Of three, the widest is outside of the width of the two others."""
    assert judge.left_out(MANY_OF_ONE) == pytest.approx(2 / 3)


def test_a_deviation_is_a_share_of_the_forecast() -> None:
    assert figures(a=[0.5])[0].deviation == pytest.approx(1.0)
    assert figures(a=[2.0])[0].deviation == pytest.approx(0.5)


@pytest.mark.parametrize(("ratio", "go", "no_go"), [(1.0, 0, 0), (1.25, 2 / 6, 0), (0.75, 0, 2 / 6)])
def test_a_wrong_word_is_one_about_a_floor_between_forecast_and_figure(ratio: float, go: float, no_go: float) -> None:
    assert judge.wrong_words(figures(a=[ratio], b=[ratio] * 3)) == pytest.approx((go, no_go))


def test_a_third_of_the_unmet_operators_is_held_back_and_has_each_kind_of_figure() -> None:
    entries = measured_rows.configurations(*measured_rows.TO_JUDGE)
    operators = {entry.operator for entry in entries}
    held = {operator for operator in operators if judge.held_back(operator)}
    assert 0.2 <= len(held) / len(operators) <= 0.45
    own = [entry for entry in entries if entry.operator in held]
    kinds = {one.kind for entry in own for row in entry.rows for one in judge.of_row(entry, row, entry.served(row))}
    assert {ONE, DRAFTER, FIRST} <= kinds


def test_the_program_prints_each_kind_and_the_wrong_words() -> None:
    text = "\n".join(judge.lines({"met": [*figures(a=[1.05], b=[0.95]), *figures(FIRST, a=[1.2])]}))
    assert all(word in text for word in ("met", ONE, FIRST, "wrong go 0.0%"))
    assert DRAFTER not in text


@pytest.mark.slow
def test_the_printed_intervals_hold_what_they_say() -> None:
    """Of met and unmet operators together, without those who are held back."""
    groups = judge.groups()
    figures = [*groups["met"], *groups["unmet"]]
    for kind in judge.KINDS:
        some = [one for one in figures if one.kind == kind]
        assert len(judge.by_operator(some)) >= 5
        assert 0.85 <= judge.coverage(some) <= 0.96, kind
