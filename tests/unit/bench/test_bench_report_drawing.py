"""Scales, thinning, labels and texts of the report's drawings."""

from __future__ import annotations

import math

import pytest

from vllm_spark.bench.report import panel, scale, svg, text

LINEAR = {
    "from zero": ([3.1, 7.4], True, ["0", "2", "4", "6", "8"]),
    "fractions": ([0.2, 2.4], True, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]),
    "thousands": ([4100.0], True, ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
    "all zero": ([0.0], True, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    "far from zero": ([78.2, 88.9], False, ["77.5", "80.0", "82.5", "85.0", "87.5", "90.0"]),
    "one value far from zero": ([80.0], False, ["76", "78", "80", "82", "84"]),
    "noise is not stretched": ([1.97, 1.99], False, ["1.85", "1.90", "1.95", "2.00", "2.05", "2.10"]),
    "zero is near": ([10.0, 84.9], False, ["0", "20", "40", "60", "80", "100"]),
}


@pytest.mark.parametrize(("values", "zero", "ticks"), LINEAR.values(), ids=LINEAR)
def test_linear_ticks(values: list[float], zero: bool, ticks: list[str]) -> None:
    axis = scale.linear(values, zero=zero)
    assert [tick.text for tick in axis.ticks] == ticks
    assert (axis.mark == scale.CUT) is (axis.ticks[0].value > 0)
    assert axis.place(axis.ticks[0].value) == pytest.approx(0)
    assert axis.place(axis.ticks[-1].value) == pytest.approx(1)
    assert all(-1e-9 <= axis.place(value) <= 1 + 1e-9 for value in values)


@pytest.mark.parametrize("span", [10**n * factor for n in range(-6, 9) for factor in (1, 1.3, 2.1, 4.9, 5.1, 9.99)])
def test_a_step_is_a_nice_number_and_small_enough(span: float) -> None:
    step = scale.nice_step(span, 5)
    assert f"{step:e}"[:3] in {"1.0", "2.0", "2.5", "5.0"}
    assert span / step <= 5 + 1e-6
    assert span / step > 1.9


LOG2 = {
    "lengths": ([512, 2048, 65536], ["1k", "4k", "16k", "64k"], False),
    "depths": ([0, 4096, 65535, 100_000], ["0", "4k", "8k", "16k", "32k", "64k"], True),
    "streams": ([1, 2, 4, 8], ["1", "2", "4", "8"], False),
    "one": ([2048], ["2k"], False),
    "nothing but zero": ([0], ["0", "1"], True),
}


@pytest.mark.parametrize(("values", "ticks", "has_zero"), LOG2.values(), ids=LOG2)
def test_log2_ticks(values: list[float], ticks: list[str], has_zero: bool) -> None:
    axis = scale.log2(values, 5 if 512 in values else 7)
    assert [tick.text for tick in axis.ticks] == ticks
    assert axis.place(min(values)) == 0
    assert (axis.ticks[0].value == 0) is has_zero
    places = [axis.place(value) for value in values]
    assert places == sorted(places)
    assert places[-1] <= 1


def test_log10_ticks_surround_the_values() -> None:
    assert [tick.text for tick in scale.log10([0.19, 22.0]).ticks] == [
        "0.1",
        "0.2",
        "0.5",
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
    ]
    assert [tick.text for tick in scale.log10([0.05, 900.0]).ticks] == ["0.01", "0.1", "1", "10", "100", "1,000"]
    assert math.isclose(scale.log10([0.1, 10]).place(1.0), 0.5)


TIMES = {
    50: (["0", "10", "20", "30", "40", "50"], "s"),
    866: (["0", "5", "10"], "min"),
    21_500: (["0", "1", "2", "3", "4", "5"], "h"),
    0: (["0", "1"], "s"),
}


@pytest.mark.parametrize(("seconds", "expected"), TIMES.items())
def test_ticks_of_time(seconds: float, expected: tuple[list[str], str]) -> None:
    axis = scale.time(seconds, 6)
    assert ([tick.text for tick in axis.ticks], axis.unit) == expected


def test_thinning_keeps_the_extremes() -> None:
    samples = [(float(t), 50.0) for t in range(10_000)]
    samples[3456], samples[7000] = (3456.0, 99.0), (7000.0, 1.0)
    buckets = panel.thin(samples, 100)
    assert len(buckets) == 100
    assert (max(bucket.high for bucket in buckets), min(bucket.low for bucket in buckets)) == (99.0, 1.0)
    assert all(bucket.low <= bucket.y <= bucket.high for bucket in buckets)
    assert [bucket.x for bucket in buckets] == sorted(bucket.x for bucket in buckets)


def test_few_samples_stay_and_a_gap_breaks_the_line() -> None:
    samples = [(float(t), float(t)) for t in (*range(10), *range(500, 510))]
    buckets = panel.thin(samples, 50)
    assert [(bucket.x, bucket.y) for bucket in buckets] == samples
    assert [len(part) for part in panel.unbroken(buckets)] == [10, 10]
    assert panel.thin([], 5) == ()


NUMBERS = {
    7.016: "7.02",
    76.44: "76.4",
    1234.5: "1,234",
    0.5614: "0.561",
    0.0209: "0.0209",
    1e-9: "0.000000",
    -3.14159: "-3.14",
    0: "0",
    100.4: "100",
}


@pytest.mark.parametrize(("value", "words"), NUMBERS.items())
def test_numbers_have_three_digits(value: float, words: str) -> None:
    assert text.number(value) == words


def test_words_are_escaped_once() -> None:
    made = svg.element("text", text.plain('a<b>"&\u202e'), class_="x", data_name='"<&')
    assert made == '<text class="x" data-name="&#34;&lt;&amp;">a&lt;b&gt;&#34;&amp;\\u202e</text>'
    assert text.duration(7502) == "2 h 05 min"
    assert (text.length(65536), text.length(65535), text.percent(0.004)) == ("64k", "65535", "0.4 %")
    shares = (0.5, 0.004, 0.0005, 0.0002, 0.00001, 0.0)
    assert [text.percent(share) for share in shares] == ["50 %", "0.4 %", "0.1 %", "0.02 %", "<0.01 %", "0.0 %"]


def test_a_path_has_relative_steps_that_do_not_add_up_errors() -> None:
    assert svg.path([(1.04, 2.0), (1.44, 1.5), (12.0, 1.5)]) == "M1 2l.4 -.5 10.6 0"
    assert svg.path([(1.04, 2.0)]) == "M1 2"
    points = [(n * 1.26, 5.0) for n in range(500)]
    steps = svg.path(points).partition("l")[2].split()[::2]
    assert sum(map(float, steps)) == pytest.approx(points[-1][0], abs=0.1)
