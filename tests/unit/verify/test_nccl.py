"""One version of NCCL on all ranks, by the log of each."""

from __future__ import annotations

import pytest

from project_files import DATA
from vllm_spark.verify import nccl

PRINTED = "spark-{0}:454:454 [0] NCCL INFO NCCL version {1}+cuda13.0"


def test_a_head_of_ray_has_the_lines_of_both_ranks() -> None:
    log = (DATA / "engine-logs" / "31b-fp8-tp2-ray.two-nodes.log").read_text().splitlines()
    assert nccl.versions(log) == ["2.28.9"]


@pytest.mark.parametrize(
    ("versions", "differ"),
    [
        (("2.30.7", "2.30.7", "2.30.7", "2.30.7"), False),
        (("2.30.7", "2.30.7", "2.29.7", "2.30.7"), True),
        (("2.30.7", "", "", "2.30.7"), False),
        (("", "", "", ""), False),
    ],
)
def test_one_rank_with_another_nccl_is_named(versions: tuple[str, ...], differ: bool) -> None:
    logs = {f"spark{rank}": [PRINTED.format(rank, version)] if version else [] for rank, version in enumerate(versions)}
    refusals = list(nccl.refusals({host: nccl.versions(log) for host, log in logs.items()}))
    assert bool(refusals) == differ
    if differ:
        assert "spark0 2.30.7, spark1 2.30.7, spark2 2.29.7, spark3 2.30.7" in str(refusals[0])
        assert refusals[0].runbook == "pair-differs"
