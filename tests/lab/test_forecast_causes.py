"""The causes of rows that were held back, and the rows that came later."""

from __future__ import annotations

from statistics import mean

import pytest

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Cause, Errors
from lab.pages import causes

# The goals of a family: its mean error, the share inside 15 %, and the first tokens inside 25 %.
MEAN, INSIDE, FIRST_INSIDE = 0.08, 0.9, 0.9


@pytest.fixture(scope="module")
def held() -> list[measured_rows.Configuration]:
    return measured_rows.configurations(measured_rows.HELD_BACK)


def misses(errors: Errors) -> bool:
    speed, first = [abs(error) for error in errors.speed], [abs(error) for error in errors.first_token]
    return (
        mean(speed) > MEAN
        or mean(error <= 0.15 for error in speed) < INSIDE
        or bool(first and mean(error <= 0.25 for error in first) < FIRST_INSIDE)
    )


def test_each_family_that_misses_a_goal_has_a_cause(held: list[measured_rows.Configuration]) -> None:
    missing = {name for name, errors in measured_rows.errors(held).items() if misses(errors)}
    assert missing
    assert missing <= {cause.family for cause in measured_rows.causes()}


@pytest.mark.parametrize("cause", measured_rows.causes(), ids=lambda cause: f"{cause.family}: {cause.what[:40]}")
def test_a_cause_is_about_rows_and_its_correction_brings_them_nearer(
    cause: Cause, held: list[measured_rows.Configuration]
) -> None:
    entries = causes.covered(cause, held)
    assert entries
    assert cause.evidence
    if cause.change:
        before, after = causes.errors(entries), causes.errors(entries, cause.change)
        assert mean(map(abs, after.speed)) < mean(map(abs, before.speed))


def test_no_row_that_came_later_is_among_those_that_were_used(held: list[measured_rows.Configuration]) -> None:
    used = {(entry.model, entry.source) for entry in [*measured_rows.configurations(), *held]}
    later = measured_rows.configurations(measured_rows.LATER)
    assert later
    assert not used & {(entry.model, entry.source) for entry in later}
    for errors in measured_rows.errors(later).values():
        assert not misses(Errors(errors.speed, []))
