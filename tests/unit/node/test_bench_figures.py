"""Every figure is that of the script, whatever a chunk holds."""

from __future__ import annotations

import pytest

from bench_streams import read, steady, usage, without_ids
from fakes.scripted_engine import Event, Stream
from vllm_spark.node.bench import counters, figures, observation
from vllm_spark.node.bench.counters import Speculation

# Name: (stream, expected figures).
ONE_STREAM = {
    "one token a chunk": (
        Stream(events := steady(101, first=0.5, gap=0.02), usage(events)),
        {
            "first_chunk": 500,
            "first_token": 500,
            "first_answer": 500,
            "decode": 50,
            "step": 20,
            "output": 101,
            "prefill": 1000,
        },
    ),
    "three tokens a chunk": (
        Stream(events := steady(101, first=0.5, gap=0.06, per_chunk=3), usage(events)),
        {"decode": 50, "output": 303},
    ),
    "a late first token after the role": (
        Stream([Event(0.2, []), *(events := steady(101, first=0.9, gap=0.02))], usage(events)),
        {"first_chunk": 200, "first_token": 900, "first_answer": 900, "decode": 50, "prefill": 500 / 0.9},
    ),
    "reasoning before the answer": (
        Stream(events := steady(101, first=0.5, gap=0.02, reasoning=50), usage(events)),
        {"first_token": 500, "first_answer": 1500, "decode": 50},
    ),
    "a stall in the middle": (
        Stream(events := [*steady(50, first=0.5, gap=0.02), *steady(51, first=2.5, gap=0.02)], usage(events)),
        {"decode": 100 / 3.0, "longest_gap": 1020, "gap_p99": 30},
    ),
    "cached prompt": (
        Stream(events := steady(11, first=0.5, gap=0.02), usage(events, prompt=500, cached_tokens=400)),
        {"prefill": 200},
    ),
    "no token ids": (
        Stream(
            events := without_ids(steady(101, first=0.5, gap=0.02)), {"prompt_tokens": 500, "completion_tokens": 202}
        ),
        {"decode": None, "output": 202, "longest_gap": 20},
    ),
    "no token ids, a chunk for each token": (
        Stream(
            events := without_ids(steady(101, first=0.5, gap=0.02)), {"prompt_tokens": 500, "completion_tokens": 101}
        ),
        {"decode": 50, "output": 101},
    ),
    "two chunks a step": (
        Stream(events := [one for at in range(51) for one in steady(2, first=0.5 + at * 0.04, gap=0.0)], usage(events)),
        {"decode": 50, "output": 102, "longest_gap": 40, "gap_p99": 40},
    ),
    "no usage": (Stream(steady(101, first=0.5, gap=0.02), None), {"decode": 50, "output": 101, "prefill": None}),
    "one chunk": (
        Stream(events := steady(1, first=0.5, gap=0.02), usage(events)),
        {"decode": None, "step": None, "output": 1},
    ),
}


@pytest.mark.parametrize(("stream", "expected"), ONE_STREAM.values(), ids=ONE_STREAM)
def test_one_stream(stream: Stream, expected: dict[str, float | None]) -> None:
    values = figures.of_run([read(stream)], None)
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)


def test_streams_are_measured_while_all_of_them_decode() -> None:
    # The second stream starts late and the first one ends early: alone each would be twice as fast.
    early = [*steady(51, first=0.2, gap=0.02), *steady(101, first=1.22, gap=0.04)]
    late = [*steady(101, first=1.2, gap=0.04), *steady(100, first=5.26, gap=0.02)]
    values = figures.of_run([read(Stream(events, usage(events))) for events in (early, late)], None)
    assert values["total"] == pytest.approx(50, rel=0.01)
    assert values["decode"] == pytest.approx(25, rel=0.01)
    assert "prefill" not in values


def test_without_a_steady_window_there_is_no_figure_of_streams() -> None:
    events = [steady(20, first=first, gap=0.02) for first in (0.0, 0.3)]
    values = figures.of_run([read(Stream(one, usage(one))) for one in events], None)
    assert "total" not in values
    assert "decode" not in values


def test_64_streams_with_jitter_add_up() -> None:
    traces = []
    for number in range(64):
        events = [Event(0.5 + index * 0.05 + (index * number % 7) * 0.001, [index]) for index in range(201)]
        traces.append(read(Stream(events, usage(events)), sent=100 + number * 0.003))
    values = figures.of_run(traces, None)
    assert values["total"] == pytest.approx(64 * 20, rel=0.01)


def test_the_drafter_is_counted_by_the_engine() -> None:
    moved = {
        observation.DRAFTS: 40.0,
        observation.DRAFTED_TOKENS: 160.0,
        observation.ACCEPTED_TOKENS: 80.0,
        f"{observation.ACCEPTED_BY_POSITION} 0": 36.0,
        f"{observation.ACCEPTED_BY_POSITION} 1": 24.0,
        f"{observation.ACCEPTED_BY_POSITION} 2": 12.0,
        f"{observation.ACCEPTED_BY_POSITION} 3": 8.0,
    }
    speculation = counters.speculation(moved)
    assert speculation == Speculation(40.0, 160.0, 80.0, (0.9, 0.6, 0.3, 0.2))
    events = steady(41, first=0.5, gap=0.06, per_chunk=3)
    values = figures.of_run([read(Stream(events, usage(events)))], speculation)
    assert values["tokens_per_step"] == 3
    assert values["acceptance"] == 0.5
    assert values["step"] == pytest.approx(60)
    assert values["acceptance_by_position"] == [0.9, 0.6, 0.3, 0.2]


@pytest.mark.parametrize(
    "moved", [{}, {observation.DRAFTS: 0.0, observation.DRAFTED_TOKENS: 0.0}, {observation.DRAFTS: 5.0}]
)
def test_no_draft_is_no_speculation(moved: dict[str, float]) -> None:
    assert counters.speculation(moved) is None


METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 3.0
process_start_time_seconds 1.76e+09
"""


def test_counters_are_added_up_but_for_their_position() -> None:
    read_counters = counters.read(METRICS)
    assert read_counters[observation.DRAFTS] == 12
    assert read_counters[f"{observation.ACCEPTED_BY_POSITION} 1"] == 4
    assert read_counters[observation.FINISHED] == 5
    assert read_counters[observation.PROCESS_START] == 1.76e9
    moved = counters.difference(read_counters, {**read_counters, observation.FINISHED: 7.0, "new_total": 1.0})
    assert (moved[observation.FINISHED], moved["new_total"], moved[observation.DRAFTS]) == (2.0, 1.0, 0.0)


def test_a_figure_keeps_every_value() -> None:
    figure = figures.figure("decode", [50.0, 52.0, 51.0])
    assert figure == {"unit": "tok/s", "median": 51.0, "spread": pytest.approx(1 / 51), "values": [50.0, 52.0, 51.0]}
    assert figures.figure("decode", [50.0])["spread"] is None
    shares = figures.figure("acceptance_by_position", [[0.9, 0.5], [0.7, 0.3], [0.8, 0.4]])
    assert shares["median"] == [0.8, 0.4]
