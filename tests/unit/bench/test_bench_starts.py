"""Starts: their phases from the lines of an engine with times, and the record of a cell."""

from __future__ import annotations

import pytest

from vllm_spark.bench import profiles, starts
from vllm_spark.bench.starts import Start
from vllm_spark.node.bench import start_job
from vllm_spark.node.bench.records import Sample

BANNER = "(APIServer pid=1) INFO 11-23 05:00:02 [utils.py:299] vLLM server version 0.30.0"
LOADING = "(EngineCore pid=9) INFO 11-23 05:00:10 [gpu_model_runner.py:1] Starting to load model /model..."
GRAPHS = "(EngineCore pid=9) INFO 11-23 05:01:00 [gpu_model_runner.py:1] Graph capturing finished in 5 secs"
SERVING = "(APIServer pid=1) INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("lines", "seconds", "expected"),
    [
        ([], 4.0, {"starting": 4.0}),
        (
            [(1.0, BANNER), (10.0, LOADING), (60.0, GRAPHS), (61.5, SERVING)],
            62.0,
            {"starting": 10.0, "loading_weights": 50.0, "capturing_graphs": 1.5, "serving": 0.5},
        ),
        # The token came before the log said so.
        ([(10.0, LOADING), (61.5, SERVING)], 61.0, {"starting": 10.0, "loading_weights": 51.0}),
        # The engine restarted once.
        (
            [(10.0, LOADING), (20.0, BANNER), (25.0, LOADING), (40.0, SERVING)],
            41.0,
            {"starting": 15.0, "loading_weights": 25.0, "serving": 1.0},
        ),
    ],
)
def test_the_phases_of_a_start_fill_it(
    lines: list[tuple[float, str]], seconds: float, expected: dict[str, float]
) -> None:
    found = starts.phases(lines, seconds)
    assert found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(seconds)


def test_a_cell_has_the_median_of_its_starts() -> None:
    cell = profiles.load("start").cells[0]
    measured = [
        Start(10.0, {"starting": 4.0, "serving": 6.0}, 60.0),
        Start(12.0, {"starting": 5.0, "serving": 7.0}, 63.0),
    ]
    record = starts.cell_record(cell, [*measured, Start(30.0, {"starting": 23.0, "serving": 7.0})])
    assert (record["figures"]["start"]["median"], record["runs"]) == (12.0, 3)
    assert record["phases"] == {"starting": 5.0, "serving": 7.0}
    assert record["figures"]["memory"]["values"] == [60.0, 63.0]


SAMPLES: list[tuple[list[float | None], float | None]] = [
    ([10.0, 12.0, 73.5, 71.0], 63.5),
    ([10.0, None, 73.5], 63.5),
    ([10.0, 9.0], 0.0),
    ([None, 73.5], None),
]


@pytest.mark.parametrize(("gib", "grown"), SAMPLES)
def test_the_memory_of_a_start_is_above_that_before_it(gib: list[float | None], grown: float | None) -> None:
    samples: list[Sample] = [{} if one is None else {"memory_gib": one} for one in gib]
    assert start_job.grown_gib(samples) == grown
