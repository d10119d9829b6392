"""Bands of noise: how far a figure may be from its level in earlier runs without a change of the server.

Figures are compared as logarithms, so that half as fast and twice as fast are equally far. The spread between runs is
that of this machine's earlier runs of the same key; until there are LEAST of them a floor takes its place. The spread
inside a run counts too, because a median of few values is uncertain. A band is a quantile of Student's distribution
times the standard error, because a spread is estimated from few values. Each leading figure of a verdict gets its part
of the probability of a false alarm (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise, takewhile
from statistics import fmean, median

# Probability of an alarm, or of a gain, for an unchanged server, of all leading figures together.
ALARMS = 0.012
# Earlier runs that tell the spread between runs.
LEAST = 5
# Cells whose differences tell the noise of a run without that.
LEAST_CELLS = 5
# The standard error of a median of n values is at most so many sigma / sqrt(n), its value for many normal values.
MEDIAN = math.sqrt(math.pi / 2)
# Differences of two normal values in sigma: their mean and their median (NIST/SEMATECH e-Handbook, 6.3.2; M. Shamos,
# Geometry and statistics, 1976). A control chart does not count a range above UPPER times the mean: it is a step.
MEAN_RANGE, MEDIAN_RANGE, UPPER = 1.128, 0.954, 3.267
# Floors, from measurements on Sparks: one dense stream varies by 0 to 0.5 % on one Spark, TP=2 by 3 to 10 % inside a
# run (field reports 001, 002 and 003, djangodevreng/dgx-spark-benchmarks). The others are in between.
DENSE, EXPERTS, STREAMS, SEVERAL_RANKS = 0.025, 0.04, 0.05, 0.08
# A smaller change is not judged, however small the spread: the client is exact to 0.1 %.
SMALLEST = 0.005
# A cumulative sum of losses in bands, each less its allowance: half a band comes by chance and by the error of the
# level. An alarm needs three runs that are almost a band slower, or more that are less.
ALLOWANCE, LIMIT = 0.5, 1.0
STEPS = 400
LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of a logarithm, and the degrees of freedom of its estimate; 0 if it is unknown."""

    sigma: float = 0.0
    freedom: int = 0

    def band(self, comparisons: int, values: float) -> float:
        """Return the band of a difference. `values`: the sum of 1 / n of the two sides. 0 if the noise is unknown."""
        if not self.freedom:
            return 0.0
        return quantile(ALARMS / max(1, comparisons), self.freedom) * self.sigma * math.sqrt(values)


def floor(*, streams: int, tensor_parallel: int, experts: bool) -> float:
    """Return the band of a load while there are few earlier runs."""
    if tensor_parallel > 1:
        return SEVERAL_RANKS
    if streams > 1:
        return STREAMS
    return EXPERTS if experts else DENSE


def inside(groups: Iterable[Sequence[float]]) -> Noise:
    """Return the noise of the values of cells inside their runs, from all pairs of a cell: one late value in three
    does not widen it."""
    several = [[math.log(value) for value in values] for values in groups if len(values) > 1 and min(values) > 0]
    differences = [abs(one - other) for values in several for one, other in combinations(values, 2)]
    return Noise(median(differences) / MEDIAN_RANGE, sum(map(len, several)) - len(several)) if several else Noise()


def between(histories: Iterable[Sequence[float]]) -> Noise:
    """Return the noise between runs from the logarithms of figures, each in the order of its runs.

    It is that of successive runs, so that a drift hardly widens it. A figure with fewer than LEAST runs says nothing.
    """
    ranges = [
        abs(later - earlier) for values in histories if len(values) >= LEAST for earlier, later in pairwise(values)
    ]
    if not ranges:
        return Noise()
    kept = [one for one in ranges if one <= UPPER * fmean(ranges)]
    # Successive differences share values: they have two thirds of the freedom of as many independent ones.
    return Noise(fmean(kept) / MEAN_RANGE, max(1, 2 * len(ranges) // 3))


def scatter(differences: Sequence[float]) -> Noise:
    """Return the noise between two runs from the differences of alike cells. A whole run that is slower has none."""
    if len(differences) < LEAST_CELLS:
        return Noise()
    apart = median(abs(one - other) for one, other in combinations(differences, 2))
    return Noise(apart / MEDIAN_RANGE / math.sqrt(2), len(differences) - 1)


def anchored(losses: Sequence[float], width: float) -> list[float]:
    """Return the first runs, up to LEAST, before one that is slower than the first by more than a band: the level that
    later ones are judged by. `losses` are logarithms, more is slower."""
    return list(takewhile(lambda loss: loss - losses[0] <= width, losses[:LEAST]))


def drift(losses: Iterable[float], width: float) -> float:
    """Return the cumulative sum of losses in bands. Gains make up for losses, and the sum is never below zero."""
    total = 0.0
    for loss in losses:
        total = max(0.0, total + loss / width - ALLOWANCE)
    return total


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
