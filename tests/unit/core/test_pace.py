"""The distances between lines about progress."""

from __future__ import annotations

import pytest

from vllm_spark.core.pace import Pace

# (begin_s, most_s), (phase, until second) -> the seconds at which a line is due, asked each second
PACES = {
    "a download of half an hour": ((5, 60), [("pulling", 400)], [5, 10, 20, 40, 80, 140, 200, 260, 320, 380]),
    "an unpacking of a minute": ((5, 60), [("pulling", 3), ("unpacking", 63)], [8, 13, 23, 43]),
    "a phase is told as it begins": ((0, 30), [("starting", 2), ("loading", 80)], [0, 2, 7, 17, 37, 67]),
    "a phase that returns is a new one": ((0, 60), [("a", 2), ("b", 4), ("a", 6)], [0, 2, 4]),
}


@pytest.mark.parametrize("name", PACES)
def test_lines_come_at_growing_distances(name: str) -> None:
    (begin_s, most_s), phases, expected = PACES[name]
    pace, second, due = Pace(begin_s, most_s), 0, []
    for phase, end in phases:
        while second < end:
            due += [second] if pace.due(phase, float(second)) else []
            second += 1
    assert due == expected
