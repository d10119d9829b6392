"""When a sampler of a rank ends by itself."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.node.bench.rank_job import Limits

BUSY, IDLE, UNKNOWN = {"gpu_percent": 96.0}, {"gpu_percent": 0.0}, {"memory_gib": 80.0}


# Limits: 100 s, and 10 s with an idle GPU. Each case has a sample for every second, and the second of the end.
@pytest.mark.parametrize(
    ("samples", "end"),
    [
        ([BUSY] * 100, (100, "limit")),
        ([UNKNOWN] * 100, (100, "limit")),
        ([IDLE] * 100, (10, "idle")),
        ([IDLE] * 9 + [BUSY] + [IDLE] * 90, (20, "idle")),
        ([BUSY] * 30 + [{"gpu_percent": 4.0}] * 70, (40, "idle")),
        ([BUSY] * 30 + [UNKNOWN] * 70, (100, "limit")),
    ],
)
def test_a_sampler_ends_by_itself(samples: list[Any], end: tuple[int, str]) -> None:
    limits = Limits(limit_s=100.0, idle_s=10.0, began=0.0, busy_at=0.0)
    reached = ((second, limits.reached(float(second), sample)) for second, sample in enumerate(samples, 1))
    assert next(((second, why) for second, why in reached if why), None) == end
