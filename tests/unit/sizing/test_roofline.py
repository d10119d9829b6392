"""Predicted speed: bytes, intervals, the longest term and the constants of a site."""

from __future__ import annotations

import pytest

from vllm_spark.recipe import architecture
from vllm_spark.sizing import constants, layout, prediction, roofline
from vllm_spark.sizing.acceptance import Accepted
from vllm_spark.sizing.load import Drafter, Load

DENSE, MIXTURE = architecture.load("gemma-4-31b"), architecture.load("gemma-4-26b-a4b")
DRAFTER = architecture.load("gemma-4-26b-a4b-assistant")
FP8 = layout.widths({"attention": "fp8", "mlp": "fp8", "experts": "fp8", "head": "bf16"})


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


DRAFTED = Drafter(DRAFTER, 4, 0.0)
# load -> the intervals that may apply to it, of which the largest does
INTERVALS = [
    (Load(), {"speed"}),
    (Load(streams=8), {"speed"}),
    (Load(streams=16), {"speed", "many"}),
    (Load(tensor_parallel=2), {"speed", "several"}),
    (Load(drafter=DRAFTED), {"speed", "drafter"}),
    (Load(drafter=DRAFTED, streams=16), {"speed", "drafter", "many"}),
    (Load(drafter=DRAFTED, tensor_parallel=2), {"speed", "several", "drafter"}),
]


@pytest.mark.parametrize(("load", "kinds"), INTERVALS)
def test_the_interval_is_the_largest_of_what_the_load_has(load: Load, kinds: set[str]) -> None:
    held = constants.spark()["held_out"]
    speed = prediction.predict(MIXTURE, FP8, load, accepted=[Accepted("code", 0.7)])
    widest = max(held[kind]["spread"] for kind in kinds)
    assert speed.interval() == pytest.approx(
        (speed.slow.tokens_per_s * (1 - widest), speed.fast.tokens_per_s * (1 + widest))
    )


def test_without_a_measured_acceptance_there_are_two_speeds() -> None:
    """Field report 004 measured 80.0 tok/s on code, and field report 000 53.7 on prose."""
    band = prediction.predict(MIXTURE, FP8, Load(context=256, drafter=DRAFTED))
    assert [speed.accepted for speed in band.speeds] == [Accepted("code", 0.76), Accepted("prose", 0.50)]
    code, prose = band.speeds
    assert prose.tokens_per_s == pytest.approx(53.7, rel=0.1)
    assert code.tokens_per_s == pytest.approx(80.0, rel=0.13)
    for speed, measured in ((code, 80.0), (prose, 53.7)):
        low, high = band.interval(speed)
        assert low < measured < high
    assert band.interval() == (band.interval(prose)[0], band.interval(code)[1])
    assert str(band) == (
        f"{prose.tokens_per_s:.1f} tok/s on prose to {code.tokens_per_s:.1f} on code (each ±{band.spread:.0%})"
    )
    assert band.cell() == f"{prose.tokens_per_s:.1f} to {code.tokens_per_s:.1f} ±{band.spread:.0%}"
    known = prediction.predict(MIXTURE, FP8, Load(context=256, drafter=DRAFTED), accepted=[Accepted("chat", 0.66)])
    assert prose.tokens_per_s < known.slow.tokens_per_s < code.tokens_per_s
    assert str(known).startswith(f"{known.slow.tokens_per_s:.1f} tok/s on chat (±")
    assert known.ceiling == band.ceiling > code.tokens_per_s


def test_a_gain_is_that_on_the_same_text() -> None:
    """Without a common text the slowest of each are compared."""
    load = Load(context=256, drafter=DRAFTED)
    own, other, chat = (
        prediction.predict(MIXTURE, FP8, load, accepted=accepted)
        for accepted in (
            [Accepted("code", 0.8), Accepted("prose", 0.2)],
            [Accepted("code", 0.6), Accepted("json", 0.9)],
            [Accepted("chat", 0.5)],
        )
    )
    assert own.gain(other) == other.speeds[1].tokens_per_s / own.fast.tokens_per_s < 1
    assert own.gain(chat) == chat.slow.tokens_per_s / own.slow.tokens_per_s > 1
    plain = prediction.predict(MIXTURE, FP8, Load(context=256))
    assert plain.gain(own) == own.slow.tokens_per_s / plain.slow.tokens_per_s
    assert plain.gains(own).keys() == {"code", "prose"}
    assert own.gain(plain) == plain.slow.tokens_per_s / own.fast.tokens_per_s
    assert own.gains(chat).keys() == plain.gains(plain).keys() == {""}


def test_the_bound_is_the_longest_term() -> None:
    short = roofline.step(DENSE, FP8, Load(context=256))
    assert short.bound() == "reading the weights, 96% of a step; 65% of them is the MLP"
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
