"""Bands of noise: how far two medians may be apart by the spread of their values alone.

Values are compared as logarithms. A band is a quantile of Student's distribution times the standard error, because a
spread is estimated from few values. Each leading figure of a run gets its part of the probability of a false alarm
(Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import median

# Probability of an alarm, or of a gain, for an unchanged server, of all leading figures together.
ALARMS = 0.015
# The standard error of a median of n values is at most so many sigma / sqrt(n), its value for many normal values.
MEDIAN = math.sqrt(math.pi / 2)
# Median of the differences of two normal values in sigma (M. Shamos, Geometry and statistics, 1976).
MEDIAN_RANGE = 0.954
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


def inside(groups: Iterable[Sequence[float]]) -> Noise:
    """Return the noise of the values of cells inside their runs, from all pairs of a cell: one late value in three
    does not widen it."""
    several = [[math.log(value) for value in values] for values in groups if len(values) > 1 and min(values) > 0]
    differences = [abs(one - other) for values in several for one, other in combinations(values, 2)]
    return Noise(median(differences) / MEDIAN_RANGE, sum(map(len, several)) - len(several)) if several else Noise()


def of_medians(values: Sequence[float], comparisons: int) -> float:
    """Return the band of the median of a run's values and that of a run which is as long; 0 if it is unknown."""
    return MEDIAN * inside([values]).band(comparisons, 2 / len(values)) if values else 0.0


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
