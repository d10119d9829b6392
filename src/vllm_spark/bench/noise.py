"""The levels of a figure in earlier runs, and how far a run may be from them without a change of the server.

Figures are compared as logarithms, so that half as fast and twice as fast are equally far; a loss is positive if it is
slower. The spread between runs is that of this machine's earlier runs of the same key, and ASSUMED until there are
LEAST of them. node.bench.bands has the spread inside a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from vllm_spark.node.bench.bands import MEDIAN, Noise

# Runs of a level, and earlier runs that tell the spread between runs. A figure forgets runs before its last LONGEST.
LEAST, LONGEST = 5, 30
# Mean of the differences of two normal values in sigma. A control chart does not count a range above UPPER times the
# mean: it is a step (NIST/SEMATECH e-Handbook, 6.3.2).
MEAN_RANGE, UPPER = 1.128, 3.267
# One stream of a dense model varies by 0 to 0.5 % on one Spark, TP=2 by 3 to 10 % inside a run (field reports 001, 002
# and 003, djangodevreng/dgx-spark-benchmarks).
ASSUMED = Noise(0.02, 1000)
# A smaller change is not judged, however small the spread: the client is exact to 0.1 %.
SMALLEST = 0.005


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a figure. `loss` is its logarithm, `sides` the variance of a run's distance from it in that of a run,
    and `choice` what the search for the best of several levels gains by chance, in standard deviations of a run."""

    loss: float
    sides: float
    choice: float = 0.0

    def width(self, noise: Noise, comparisons: int) -> float:
        """Return the distance that a run of the unchanged server keeps."""
        return max(noise.band(comparisons, self.sides) + self.choice * noise.sigma, SMALLEST)


def levels(losses: Sequence[float], width: Callable[[Level], float]) -> tuple[Level, Level]:
    """Return the recent level and the best one, the anchor. `losses` are those of the runs in order, at least one.

    A run that was slower than one of the levels before it enters none, so a loss does not become the level by time.
    """
    kept: list[float] = []
    for loss in losses[-LONGEST:]:
        if not kept or all(loss - level.loss <= width(level) for level in _levels(kept)):
            kept.append(loss)
    return _levels(kept)


def _levels(kept: Sequence[float]) -> tuple[Level, Level]:
    number = min(LEAST, len(kept))
    rows = [fmean(kept[start : start + number]) for start in range(len(kept) - number + 1)]
    choice = math.sqrt(2 * math.log(len(rows)) / number)
    return Level(median(kept[-number:]), 1 + MEDIAN**2 / number), Level(min(rows), 1 + 1 / number, choice)


def between(histories: Iterable[Sequence[float]]) -> Noise:
    """Return the noise between runs from the logarithms of figures, each in the order of its runs.

    It is that of successive runs, so that a drift hardly widens it. A figure with fewer than LEAST runs says nothing.
    """
    ranges = [
        abs(later - earlier) for values in histories if len(values) >= LEAST for earlier, later in pairwise(values)
    ]
    if not ranges:
        return ASSUMED
    kept = [one for one in ranges if one <= UPPER * fmean(ranges)]
    # Successive differences share values: they have two thirds of the freedom of as many independent ones.
    return Noise(fmean(kept) / MEAN_RANGE, max(1, 2 * len(ranges) // 3))
