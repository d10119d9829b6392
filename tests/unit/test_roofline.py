"""Predicted speed against every reported row, and the limits of its claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_spark.recipe import architecture
from vllm_spark.sizing import constants, layout, prediction, reported_speeds, roofline
from vllm_spark.sizing.load import Drafter, Load
from vllm_spark.sizing.reported_speeds import Row

SEEDS = reported_speeds.rows("seeds")
HELD_BACK = reported_speeds.rows("held_back")
SWEEP = "field report 004, sweep of num_speculative_tokens"

DENSE, MIXTURE = architecture.load("gemma-4-31b"), architecture.load("gemma-4-26b-a4b")
DRAFTER = architecture.load("gemma-4-26b-a4b-assistant")
FP8 = layout.widths({"attention": "fp8", "mlp": "fp8", "experts": "fp8", "head": "bf16"})


def test_there_are_thirty_seeds_and_every_id_is_unique() -> None:
    assert len(SEEDS) == 30
    ids = [row.id for row in [*SEEDS, *HELD_BACK]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("row", SEEDS, ids=lambda row: row.id)
def test_a_seed_is_within_15_percent_and_better_than_the_naive_prediction(row: Row) -> None:
    assert abs(row.error()) <= reported_speeds.INSIDE
    assert abs(row.error()) < abs(row.naive_error())


def test_the_mean_error_is_at_most_5_percent_and_far_below_the_naive_one() -> None:
    assert reported_speeds.summary([row.error() for row in SEEDS]).mean <= 0.05
    assert reported_speeds.summary([row.naive_error() for row in SEEDS]).mean > 1


def test_four_drafted_tokens_are_fastest_as_measured() -> None:
    sweep = [row for row in SEEDS if row.source == SWEEP]
    assert len(sweep) == 5
    fastest = max(sweep, key=lambda row: row.step().tokens_per_s)
    assert fastest.load.drafter is not None
    assert fastest.load.drafter.tokens == 4
    assert fastest is max(sweep, key=lambda row: row.measured)


def test_speeds_above_full_acceptance_are_disputed() -> None:
    for row in reported_speeds.rows("disputed"):
        assert row.load.drafter is not None
        assert row.load.drafter.acceptance == 1
        assert row.measured > row.step().tokens_per_s
    plausible = [row for row in [*SEEDS, *HELD_BACK] if row.load.drafter]
    for row in plausible:
        assert row.load.drafter is not None
        full = replace(row, load=replace(row.load, drafter=replace(row.load.drafter, acceptance=1.0)))
        assert row.measured < full.step().tokens_per_s, row.id


# Variants without one term. Each must have a larger error on the seeds.
WITHOUT = {
    "the bandwidth of the data sheet": {"bandwidth": 273e9},
    "overhead of layers and steps": {"layer_dense_s": 0.0, "layer_experts_s": 0.0, "step_s": 0.0},
    "shared experts": {"apart_sequences": 1.0, "apart_drafts": 1.0, "experts_used": 1.0},
    "experts of its own": {"apart_sequences": 0.0, "apart_drafts": 0.0},
    "all-reduces": {"all_reduce_s": 0.0, "link": 1e15},
}


@pytest.mark.parametrize("values", WITHOUT.values(), ids=WITHOUT.keys())
def test_every_term_is_needed(values: dict[str, float]) -> None:
    variant = reported_speeds.summary([row.error(constants.constants_of(values)) for row in SEEDS])
    assert variant.mean > reported_speeds.summary([row.error() for row in SEEDS]).mean


# model, its published size in billions, its published active part
PUBLISHED = [("gemma-4-31b", 30.7, 30.7), ("gemma-4-26b-a4b", 25.2, 3.8), ("qwen3.6-35b-a3b", 34.7, 3.0)]


@pytest.mark.parametrize(("name", "billions", "active"), PUBLISHED)
def test_weights_follow_from_the_dimensions(name: str, billions: float, active: float) -> None:
    model = architecture.load(name)
    assert sum(model.stored_weights().values()) - model.vision == pytest.approx(billions * 1e9, rel=0.005)
    assert model.active == pytest.approx(active * 1e9, rel=0.02)


# model or drafter, width of attention, MLP and experts, GB of its repository
ON_DISK = [
    ("gemma-4-31b", "bf16", "bf16", "bf16", 62.58),
    ("gemma-4-31b", "bf16", "nvfp4", "bf16", 32.633),
    ("gemma-4-26b-a4b", "bf16", "bf16", "bf16", 51.612),
    ("gemma-4-26b-a4b", "bf16", "bf16", "nvfp4", 18.782),
    ("gemma-4-26b-a4b", "nvfp4", "nvfp4", "nvfp4", 16.5),
    ("gemma-4-26b-a4b-assistant", "bf16", "bf16", "bf16", 0.84),
    ("gemma-4-31b-assistant", "bf16", "bf16", "bf16", 0.93),
]


@pytest.mark.parametrize(("name", "attention", "mlp", "experts", "gigabytes"), ON_DISK)
def test_files_are_as_large_as_published(name: str, attention: str, mlp: str, experts: str, gigabytes: float) -> None:
    known = layout.widths({"attention": attention, "mlp": mlp, "experts": experts})
    filed = architecture.load(name).stored_weights()
    size = sum(count * known.get(part, layout.UNQUANTISED) for part, count in filed.items())
    assert size == pytest.approx(gigabytes * 1e9, rel=0.011)


@pytest.mark.parametrize(("context", "gigabytes"), [(512, 0.231), (1024, 0.461), (16384, 1.09), (131072, 5.8)])
def test_beyond_the_window_only_full_layers_add_to_the_cache(context: int, gigabytes: float) -> None:
    assert roofline.cache_bytes(DENSE, context, 1.0) == pytest.approx(gigabytes * 1e9, rel=0.01)


# load -> half of the interval, which leaving a configuration of Gemma 4 out gives
INTERVALS = [
    (Load(), 0.11),
    (Load(streams=8), 0.11),
    (Load(tensor_parallel=2), 0.18),
    (Load(drafter=Drafter(DRAFTER, 4, 0.0)), 0.18),
]


@pytest.mark.parametrize(("load", "spread"), INTERVALS)
def test_the_interval_is_wider_for_two_sparks_and_for_a_drafter(load: Load, spread: float) -> None:
    speed = prediction.predict(MIXTURE, FP8, load, accepted=[0.7])
    assert speed.low == pytest.approx(speed.slow.tokens_per_s * (1 - spread))
    assert speed.high == pytest.approx(speed.fast.tokens_per_s * (1 + spread))


def test_without_a_measured_acceptance_there_are_two_speeds() -> None:
    load = Load(context=256, drafter=Drafter(DRAFTER, 4, 0.0))
    band = prediction.predict(MIXTURE, FP8, load)
    assert band.accepted == pytest.approx((0.50, 0.76))
    interval = f"(±18%: {band.low:.1f} to {band.high:.1f})"
    assert str(band) == f"{band.slow.tokens_per_s:.1f} to {band.fast.tokens_per_s:.1f} tok/s {interval}"
    assert band.slow.tokens_per_s == pytest.approx(58, rel=0.05)
    assert band.fast.tokens_per_s == pytest.approx(78, rel=0.05)
    known = prediction.predict(MIXTURE, FP8, load, accepted=[0.66])
    assert band.slow.tokens_per_s < known.slow.tokens_per_s == known.fast.tokens_per_s < band.fast.tokens_per_s
    assert known.ceiling == band.ceiling > band.fast.tokens_per_s


def test_the_bound_is_the_longest_term() -> None:
    short = roofline.step(DENSE, FP8, Load(context=256))
    assert short.bound() == "reading the weights, 95% of a step; 65% of them is the MLP"
    crowded = roofline.step(DENSE, FP8, Load(context=131072, streams=64))
    assert crowded.bound().startswith("reading the cache, ")
    small = architecture.load("tiny-gemma4")
    assert roofline.step(small, FP8, Load()).bound().startswith("overhead of ")


def test_constants_of_a_site_replace_only_those_with_their_name() -> None:
    fast_link = constants.constants_of({"all_reduce_s": 35e-6})
    pair = Load(context=2112, tensor_parallel=2, kv_width=1.0)
    gain = roofline.step(DENSE, FP8, pair).total_s - roofline.step(DENSE, FP8, pair, fast_link).total_s
    usual = constants.constants_of({})
    assert gain == pytest.approx(121 * (usual.all_reduce_s - 35e-6))
    assert fast_link.bandwidth == usual.bandwidth
    with pytest.raises(ValueError, match="unknown bandwith"):
        constants.constants_of({"bandwith": 1.0})
