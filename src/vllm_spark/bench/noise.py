"""Bands of noise: how far the median of a new run may be from that of an old one without a change of the server.

A band is max(k x standard error of the difference, floor), relative to the old median. The standard error of a median
of n values is at most 1.2533 sigma / sqrt(n), its value for many normal values. k is the quantile of Student's
distribution, because sigma is estimated from few values: with three values, 3 sigma would give a false alarm in 4 % of
comparisons instead of 0.27 %. A verdict has many comparisons, so each one gets its part of these 0.27 % (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Probability of a value outside of 3 sigma.
ALARMS = 0.0027
MEDIAN = math.sqrt(math.pi / 2)
# Floors, from measurements on Sparks: one dense stream varies by 0 to 0.5 % on one Spark, TP=2 by 3 to 10 % (field
# reports 001, 002 and 003, djangodevreng/dgx-spark-benchmarks). The mixture of experts is in between.
DENSE, EXPERTS, MANY = 0.02, 0.04, 0.10
STEPS = 400
LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviation of a metric, and the degrees of freedom of its estimate; 0 if it is unknown."""

    sigma: float = 0.0
    freedom: int = 0


def floor(*, streams: int, tensor_parallel: int, experts: bool) -> float:
    """Return the smallest band of a load."""
    if streams > 1 or tensor_parallel > 1:
        return MANY
    return EXPERTS if experts else DENSE


def pooled(groups: Iterable[Sequence[float]]) -> Noise:
    """Return the noise of groups of values, each about its own mean. A group of one value says nothing."""
    squares, freedom = 0.0, 0
    for values in groups:
        mean = statistics.fmean(values)
        if len(values) > 1 and mean:
            squares += statistics.variance(values) / mean**2 * (len(values) - 1)
            freedom += len(values) - 1
    return Noise(math.sqrt(squares / freedom), freedom) if freedom else Noise()


def band(old: Sequence[float], new: Sequence[float], load: Noise, smallest: float, comparisons: int = 1) -> float:
    """Return the relative band around the old median.

    `load` is the noise of all cells of this kind in both runs. It has more values than one cell, and counts unless the
    cell itself is noisier.
    """
    own = pooled([old, new])
    if not load.freedom:
        return smallest
    error = max(own.sigma, load.sigma) * MEDIAN * math.sqrt(1 / len(old) + 1 / len(new))
    return max(quantile(ALARMS / max(1, comparisons), load.freedom) * error, smallest)


@lru_cache(maxsize=1024)
def quantile(probability: float, freedom: int) -> float:
    """Return t so that Student's |T| exceeds it with this probability."""
    low, high = 0.0, LARGEST
    while high - low > 1e-6 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > probability else (low, middle)
    return high


def tail(value: float, freedom: int) -> float:
    """Return the probability that Student's |T| exceeds a value.

    With t = sqrt(freedom) tan(u) the density is proportional to cos(u)**(freedom - 1), which Simpson's rule integrates.
    """
    start = math.atan(value / math.sqrt(freedom))
    width = (math.pi / 2 - start) / STEPS
    heights = [max(0.0, math.cos(start + step * width)) ** (freedom - 1) for step in range(STEPS + 1)]
    area = width / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    whole = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)) * math.sqrt(math.pi) / 2
    return area / whole
