"""The terms of the forecast that are no bytes: prompts, streams, drafts by their number, ranks, graphs, hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import architecture
from vllm_spark.sizing import (
    acceptance,
    burst,
    constants,
    layout,
    prediction,
    roofline,
)
from vllm_spark.sizing.acceptance import Accepted, Share
from vllm_spark.sizing.burst import Requests
from vllm_spark.sizing.load import Drafter, Load
from vllm_spark.sizing.measured import Measured

GEMMA, DENSE = architecture.load("gemma-4-26b-a4b"), architecture.load("gemma-4-31b")
FP8 = layout.widths({"attention": "fp8", "mlp": "fp8", "experts": "fp8", "head": "bf16"})
BF16 = layout.widths({"attention": "bf16", "mlp": "bf16", "experts": "bf16", "head": "bf16"})
SPARK = constants.constants_of({})


@pytest.mark.parametrize(("tokens", "share"), acceptance.CODE.items())
def test_the_measured_acceptance_of_each_number_is_kept(tokens: int, share: float) -> None:
    assert Accepted("code", share) in acceptance.expected(tokens)


def test_four_drafted_tokens_are_best_on_code_and_fewer_on_prose() -> None:
    drafter = architecture.load("gemma-4-26b-a4b-assistant")
    speeds: dict[str, dict[int, float]] = {"slow": {}, "fast": {}}
    for tokens in range(2, 9):
        speed = prediction.predict(GEMMA, FP8, Load(context=256, drafter=Drafter(drafter, tokens, 0.0)))
        speeds["slow"][tokens], speeds["fast"][tokens] = speed.slow.tokens_per_s, speed.fast.tokens_per_s
    assert max(speeds["fast"], key=lambda tokens: speeds["fast"][tokens]) == 4
    assert max(speeds["slow"], key=lambda tokens: speeds["slow"][tokens]) <= 4
    assert speeds["fast"][8] < speeds["fast"][6] < speeds["fast"][4]


def test_acceptance_is_carried_over_to_another_number_of_tokens() -> None:
    (fewer,) = acceptance.expected(2, [Share("code", 4, 0.5)])
    (more,) = acceptance.expected(6, [Share("code", 4, 0.5)])
    assert more.rate < 0.5 < fewer.rate
    assert fewer.measured == more.measured == Share("code", 4, 0.5)
    measured = Share("code", 4, 0.61)
    assert acceptance.expected(4, [measured, Share("code", 2, 0.9)]) == [Accepted("code", 0.61, measured)]


def test_each_kind_of_text_has_the_share_of_its_nearest_number() -> None:
    known = [Share("code", 2, 0.87), Share("code", 6, 0.56), Share("prose", 4, 0.5)]
    assert acceptance.nearest(5, known) == [Share("code", 6, 0.56), Share("prose", 4, 0.5)]
    code, prose = acceptance.expected(2, known)
    assert (code.text, code.rate) == ("code", 0.87)
    assert [prose] == acceptance.expected(2, known[2:])


def test_many_tokens_are_bound_by_computing() -> None:
    few, many = (roofline.step(DENSE, FP8, Load(context=64, streams=n)).seconds[roofline.WEIGHTS] for n in (1, 512))
    assert many > 2 * few
    flop = 2 * sum(DENSE.read_weights().values()) * 512
    assert many > flop / (2 * SPARK.compute_8)


def test_an_all_reduce_grows_with_the_tokens_of_a_step() -> None:
    one, many = (
        roofline.step(DENSE, FP8, Load(streams=n, tensor_parallel=2)).seconds[roofline.ALL_REDUCE] / DENSE.reductions
        for n in (1, 16)
    )
    assert 10e-6 < one < 120e-6
    few = 1 + constants.FEW_BYTES_MORE
    assert many - one == pytest.approx(few * 15 * DENSE.hidden * 2 / SPARK.link)


def test_an_all_reduce_of_a_prompt_has_the_rate_of_the_link_and_begins_later() -> None:
    pair = Load(tensor_parallel=2)
    short, long = (roofline.all_reduce_s(DENSE, tokens, pair, SPARK) for tokens in (4096, 8192))
    sent = 4096 * DENSE.hidden * 2 / SPARK.link
    assert long - short == pytest.approx(sent)
    assert short - sent == pytest.approx(SPARK.all_reduce_s + SPARK.many_bytes_s)


def test_an_eager_start_costs_launches() -> None:
    """Field report 003: 10 % of the 31B; a public report of gpt-oss-120b: 59 tok/s become 26."""
    dense = [roofline.step(DENSE, FP8, Load(context=256, eager=eager)).tokens_per_s for eager in (False, True)]
    assert dense[1] / dense[0] == pytest.approx(0.9, abs=0.06)
    oss = architecture.load("gpt-oss-120b")
    widths = layout.widths({"attention": "bf16", "experts": "mxfp4", "head": "bf16"})
    assert roofline.step(oss, widths, Load(eager=True)).tokens_per_s == pytest.approx(26, rel=0.15)


def test_a_state_is_read_and_written() -> None:
    model = architecture.load("qwen3.6-35b-a3b")
    states = sum(group.layers * group.state() for group in model.attention)
    longer = roofline.cache_bytes(model, 1, 2.0)
    assert longer == pytest.approx(2 * states + 20480)


# prompts at once -> mean of their times to the first token, in times of one prompt alone, if they wait in a queue
QUEUES = {1: 1.0, 5: 3.0, 10: 5.5}


@pytest.mark.parametrize(("streams", "waits"), QUEUES.items())
def test_prompts_that_arrive_together_wait_for_each_other(streams: int, waits: float) -> None:
    alone = burst.serve(DENSE, BF16, Load(), Requests(1, 8192, 2), SPARK).first_token_s
    together = burst.serve(DENSE, BF16, Load(), Requests(streams, 8192, 2), SPARK).first_token_s
    assert together / alone == pytest.approx(waits, rel=0.06)


def test_a_stream_decodes_slower_while_other_prompts_are_computed() -> None:
    short = burst.serve(DENSE, BF16, Load(), Requests(10, 256, 256), SPARK)
    long = burst.serve(DENSE, BF16, Load(), Requests(10, 16384, 256), SPARK)
    assert long.decode < 0.5 * short.decode
    alone = roofline.step(DENSE, BF16, Load(context=384)).tokens_per_s
    assert burst.serve(DENSE, BF16, Load(), Requests(1, 256, 256), SPARK).decode == pytest.approx(alone, rel=0.02)


def test_more_streams_than_sequences_wait() -> None:
    served = burst.serve(DENSE, BF16, Load(), Requests(8, 256, 64, sequences=2), SPARK)
    free = burst.serve(DENSE, BF16, Load(), Requests(8, 256, 64), SPARK)
    assert served.first_token_s > 3 * free.first_token_s
    assert served.total < free.total


def test_a_total_is_below_that_since_the_first_token_and_below_steady_decode() -> None:
    served = burst.serve(DENSE, BF16, Load(), Requests(16, 1024, 128), SPARK)
    steady = 16 * roofline.step(DENSE, BF16, Load(context=1088, streams=16)).tokens_per_s
    assert served.total < served.after_first < steady
    alone = burst.serve(DENSE, BF16, Load(), Requests(1, 1024, 128), SPARK)
    assert alone.after_first == pytest.approx(alone.decode)


@pytest.mark.parametrize("name", constants.spark()["constants"])
def test_a_constant_is_what_a_spark_can_have(name: str) -> None:
    entry = constants.spark()
    least, most = entry["bounds"][name]
    assert least <= entry["constants"][name] <= most
    # The data sheet of the GB10 and its link: 273 GB/s, 1,000 TFLOP/s of sparse FP4, 200 Gbit/s.
    ceiling = {"bandwidth": 273e9, "link": 25e9, "compute_4": 500e12, "compute_8": 250e12}
    assert most <= ceiling.get(name, 125e12)


def test_there_are_at_most_twenty_values_and_each_has_bounds() -> None:
    entry = constants.spark()
    shapes = map(architecture.load, architecture.names())
    routers = {shape.family for shape in shapes if shape.experts and shape.experts.used}
    assert len(entry["constants"]) + len(routers) <= 20
    assert set(entry["bounds"]) == set(entry["constants"]) > set(entry["by_hand"])


@pytest.mark.parametrize(("name", "value"), [("link", 30e9), ("compute_16", 180e12), ("bandwidth", 1e9)])
def test_a_constant_of_a_site_that_no_spark_has_is_refused(name: str, value: float) -> None:
    """YAML reads 30e9 as a text."""
    for written in (value, f"{value:g}"):
        with pytest.raises(RefusedError) as caught:
            constants.of_site({name: written})  # type: ignore[dict-item]
        assert f"{name} {value:g}; a Spark has " in str(caught.value)


def test_an_interval_says_whose_figures_it_holds_and_is_narrower_beside_an_own_factor() -> None:
    plain = prediction.predict(GEMMA, FP8, Load())
    own = Measured(speed=0.9, first_token=1.2).applied(plain)
    for stranger, owner in ((plain.of_speed, own.of_speed), (plain.of_first_token, own.of_first_token)):
        assert owner.spread < stranger.spread
        assert stranger.whose == f"{stranger.operators} operators who were left out, each counted once"
        assert owner.whose == f"other loads of {owner.operators} servers, whose factor their owners had measured"
    only_speed = Measured(speed=0.9).applied(plain)
    assert (only_speed.of_speed, only_speed.of_first_token) == (own.of_speed, plain.of_first_token)


def test_a_long_prompt_has_an_interval_of_its_own() -> None:
    short, long = (prediction.predict(GEMMA, FP8, Load(context=tokens)) for tokens in (1024, constants.DEEP))
    held = constants.spark()["held_out"]
    assert (short.first_token_spread, long.first_token_spread) == (
        held["first_token"]["spread"],
        held["depth"]["spread"],
    )


def test_drafted_tokens_write_a_state_each() -> None:
    model = architecture.load("qwen3.6-27b")
    states = sum(group.layers * group.state() for group in model.attention)
    none, four = (roofline.cache_bytes(model, 1024, 1.0, drafted) for drafted in (0, 4))
    assert four - none == 4 * states


def test_narrow_experts_gain_less_from_a_second_spark_than_wide_ones() -> None:
    """Public pairs: MiniMax, with experts of width 1536, gains more than Qwen3.6-35B with 512."""
    gains = {}
    for name in ("qwen3.6-35b-a3b", "minimax-m2.5"):
        shape = architecture.load(name)
        one, two = (roofline.step(shape, FP8, Load(tensor_parallel=ranks)).tokens_per_s for ranks in (1, 2))
        gains[name] = two / one
    assert 1 < gains["qwen3.6-35b-a3b"] < gains["minimax-m2.5"] < 2


def test_eight_bits_are_computed_by_marlin_only_if_that_is_forced() -> None:
    prompt = Load(streams=0, prompt=8192)
    native, four, eight = (
        roofline.step(DENSE, FP8, load).total_s
        for load in (prompt, replace(prompt, marlin=True), replace(prompt, marlin_8=True))
    )
    assert native == four < eight
