"""Scales of axes: from a value to a coordinate, and ticks at numbers that people read easily."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vllm_spark.bench.report import text

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
MINUTE, HOUR = 60, 3600
# A range whose smallest value is above this share of its largest does not begin at zero.
NEAR = 0.5
# Least range of an axis as a share of its largest value: noise must not look like a change.
LEAST_SPAN = 0.1
# Marks of axes.
CUT, LOG = " (axis cut)", " (log)"


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: its value and its text."""

    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis without its length. `place` maps a value to a share, 0 at its beginning and 1 at its end."""

    ticks: tuple[Tick, ...]
    place: Callable[[float], float]
    # The unit that the ticks have, for a label.
    unit: str = ""
    # What a reader must know of the axis, a suffix of its label.
    mark: str = ""


def nice_step(span: float, count: int) -> float:
    """Return the smallest step of 1, 2, 2.5, 5 times 10ⁿ that divides a span into at most `count` parts."""
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(step * power for step in (*STEPS, 20.0) if step * power * count >= span * (1 - 1e-9))


def linear(values: Iterable[float], count: int = 5, *, zero: bool = True) -> Axis:
    """Return a linear axis around the values, from tick to tick. With `zero` it begins at zero."""
    known = [*values]
    low, high = min(known), max(known)
    if zero or 0 <= low < NEAR * high:
        low, high = min(low, 0.0), max(high, 0.0)
    if (missing := LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) > 0:
        low, high = low - missing / 2, high + missing / 2
    if low == high:
        high += 1
    step = nice_step(high - low, count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9) + (1 if f"{step:e}".startswith("2.5") else 0))
    ticks = tuple(Tick(n * step, f"{n * step:,.{digits}f}") for n in range(first, last + 1))
    return Axis(ticks, _straight(first * step, last * step), mark=CUT if first > 0 else "")


def _straight(low: float, high: float) -> Callable[[float], float]:
    return lambda value: (value - low) / (high - low)


def log2(values: Iterable[float], count: int = 7) -> Axis:
    """Return an axis with a tick at each power of two, or at each second one if there are too many.

    Zero has no logarithm. It gets the place one power before the smallest positive value."""
    known = sorted(set(values))
    positive = [value for value in known if value > 0] or [1.0]
    low, high = math.log2(positive[0]), math.log2(positive[-1])
    begin = low - 1 if known and known[0] <= 0 else low
    end = max(high, begin + 1)
    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    kept = [power for power in powers if (powers[-1] - power) % math.ceil(len(powers) / count) == 0]
    ticks = [Tick(2.0**power, text.length(2.0**power)) for power in kept]
    if begin < low:
        ticks.insert(0, Tick(0.0, "0"))
    return Axis(tuple(ticks), lambda value: ((math.log2(value) if value > 0 else begin) - begin) / (end - begin))


def log10(values: Iterable[float]) -> Axis:
    """Return an axis with ticks at 1, 2, 5 times 10ⁿ, or at 10ⁿ over three decades or more. The values are positive."""
    known = [value for value in values if value > 0]
    low, high = math.log10(min(known)), math.log10(max(known))
    parts = (0.0,) if high - low >= 3 else (0.0, math.log10(2), math.log10(5))  # noqa: PLR2004
    marks = [n + part for n in range(math.floor(low) - 1, math.ceil(high) + 2) for part in parts]
    first = max(mark for mark in marks if mark <= low + 1e-9)
    last = min(mark for mark in marks if mark >= high - 1e-9 and mark > first)
    ticks = tuple(Tick(10**mark, f"{float(f'{10**mark:.3g}'):,g}") for mark in marks if first <= mark <= last)
    return Axis(ticks, lambda value: (math.log10(value) - first) / (last - first) if value > 0 else 0.0, mark=LOG)


def whole(values: Iterable[float]) -> Axis:
    """Return an axis of counts with half a step of room at both ends. Every count has a tick, up to about ten."""
    known = sorted({round(value) for value in values})
    low, high = known[0] - 0.5, known[-1] + 0.5
    every = math.ceil((known[-1] - known[0] + 1) / 10)
    ticks = tuple(Tick(n, f"{n}") for n in range(known[0], known[-1] + 1, every))
    return Axis(ticks, _straight(low, high))


def time(seconds: float, count: int) -> Axis:
    """Return an axis of time from 0 until these seconds, in s, min or h."""
    end = max(seconds, 1.0)
    step = next((step for step in TIME_STEPS if step * count >= end), TIME_STEPS[-1] * math.ceil(end / 86400 / count))
    size, unit = (1, "s") if end < 2 * MINUTE else (MINUTE, "min") if end < 2 * HOUR else (HOUR, "h")
    ticks = tuple(Tick(n * step, f"{n * step / size:g}") for n in range(int(end // step) + 1))
    return Axis(ticks, _straight(0.0, end), unit)
