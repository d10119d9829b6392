"""The timings of all-reduces between Sparks, and what a forecast takes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import link_timing
from vllm_spark.inventory.link_timing import Timing
from vllm_spark.recipe import architecture
from vllm_spark.sizing import constants, roofline
from vllm_spark.sizing.load import Load

GEMMA = architecture.load("gemma-4-31b")

PAIR, SMALL, LARGE = ("spark2", "spark1"), 16 * 1024, 64 * 1024**2


def timing(hosts: tuple[str, ...] = PAIR, backend: str = "nccl") -> Timing:
    """Return what ranks see by the forecast's own formula with 40 µs and 10 GB/s: of 4 and of 16,384 tokens."""
    known, model = constants.constants_of({"all_reduce_s": 40e-6, "link": 10e9}), replace(GEMMA, hidden=2048)
    load = Load(tensor_parallel=len(hosts))
    calls = [
        (size, 1e6 * roofline.all_reduce_s(model, size // 2 // model.hidden, load, known)) for size in (SMALL, LARGE)
    ]
    return Timing(hosts, backend, calls, "vllm@sha256:0", "2026-11-29")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_latency_and_rate_follow_from_two_calls_over_any_number_of_ranks(ranks: int) -> None:
    known = constants.of_site({}, timing(tuple(f"spark{number}" for number in range(1, ranks + 1))))
    assert (known.all_reduce_s, known.link) == pytest.approx((40e-6, 10e9))


def test_a_timing_without_a_gpu_changes_no_forecast() -> None:
    gloo = timing(backend="gloo")
    assert gloo.line().endswith("there is no GPU, so no forecast takes it")
    assert constants.of_site({}, gloo) == constants.of_site({})


def test_a_timing_is_found_by_its_hosts_whichever_is_the_head(tmp_path: Path) -> None:
    written = timing()
    assert link_timing.write(tmp_path / "fabric", written).name == "spark1+spark2.json"
    assert link_timing.read(tmp_path / "fabric", ["spark1", "spark2"]) == written
    assert link_timing.read(tmp_path / "fabric", ["spark1", "spark3"]) is None


def test_a_file_that_is_no_timing_is_refused_with_the_command_that_writes_it_again(tmp_path: Path) -> None:
    link_timing.file_of(tmp_path, PAIR).write_text('{"hosts": ["spark1", "spark2"], "calls": []}')
    with pytest.raises(RefusedError, match="time_all_reduce=true"):
        link_timing.read(tmp_path, PAIR)


def test_the_line_of_the_first_rank_is_found_among_those_of_nccl() -> None:
    printed = (
        "spark1:1:1 [0] NCCL INFO Using network IB\n"
        '{"all_reduce": {"backend": "nccl", "ranks": 2, "calls": [[16384, 41.0], [67108864, 6300.5]]}}\n'
    )
    found = link_timing.of_output(printed, PAIR, "vllm@sha256:0", "2026-11-29")
    assert found == Timing(PAIR, "nccl", [(SMALL, 41.0), (LARGE, 6300.5)], "vllm@sha256:0", "2026-11-29")
    assert found.line().endswith("16 KiB in 41 µs, 65,536 KiB in 6,300 µs, 10.7 GB/s")
    assert link_timing.of_output("NCCL WARN no socket\n", PAIR, "", "") is None


def test_what_the_owner_sets_counts_before_what_was_timed_and_no_value_leaves_the_bounds() -> None:
    known = constants.of_site({"link": 12e9}, timing())
    assert (known.link, known.all_reduce_s) == (12e9, pytest.approx(40e-6))
    assert known.own == {"link", "all_reduce_s"}
    slow = Timing(PAIR, "nccl", [(SMALL, 9000.0), (LARGE, 9e6)], "", "")
    assert constants.of_site({}, slow).all_reduce_s == constants.spark()["bounds"]["all_reduce_s"][1]
