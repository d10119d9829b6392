"""The intervals of hardware.yml hold the public rows that they are for."""

from __future__ import annotations

import pytest

from lab.forecast import intervals
from vllm_spark.sizing import constants


@pytest.mark.parametrize("kind", intervals.KINDS)
def test_the_interval_of_the_hardware_is_what_the_rows_give(kind: str) -> None:
    errors = intervals.errors(kind)
    stated = constants.spark()["held_out"][kind]  # type: ignore[literal-required]  # the keys of KINDS
    assert len(errors) >= 50
    assert stated == intervals.width(errors), "write what `python -m lab.forecast.intervals` prints into hardware.yml"
    assert sum(error <= stated for error in errors) >= intervals.WITHIN * len(errors)


@pytest.mark.parametrize("kind", intervals.KINDS)
def test_the_own_interval_of_a_family_holds_its_rows(kind: str) -> None:
    for name, family in constants.spark()["families"].items():
        errors = intervals.errors(kind, name)
        if kind in family["held_out"] and errors:
            stated = family["held_out"][kind]  # type: ignore[literal-required]  # the keys of KINDS
            assert stated >= intervals.width(errors), name


def test_a_width_holds_nine_of_ten_and_is_never_that_of_one_operator() -> None:
    assert intervals.width([0.1, 0.2, 0.301, 0.5]) == 0.5
    assert intervals.width([*[0.1] * 8, 0.231, 0.9]) == 0.24
    assert intervals.width([0.01] * 10) == intervals.LEAST


def test_the_program_prints_each_kind_with_what_the_file_has(capsys: pytest.CaptureFixture[str]) -> None:
    intervals.main()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["kind", "rows", "90", "%", "in", "hardware.yml"]
    assert [line.split()[0] for line in lines] == list(intervals.KINDS)
    assert all(line.split()[2] == line.split()[3] for line in lines)
