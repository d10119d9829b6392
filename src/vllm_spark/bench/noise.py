"""Bands of noise: how far a figure may be from its level in earlier runs without a change of the server.

Figures are compared as logarithms, so that half as fast and twice as fast are equally far. The spread between runs is
that of this machine's earlier runs of the same key; until there are LEAST of them a floor takes its place, and what
comes by chance with a spread of DOUBT is in doubt. node.bench.bands has the spread inside a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise, takewhile
from statistics import NormalDist, fmean, median

from vllm_spark.node.bench.bands import MEDIAN_RANGE, Noise

# Earlier runs that tell the spread between runs.
LEAST = 5
# Cells whose differences tell the noise of a run without that.
LEAST_CELLS = 5
# Mean of the differences of two normal values in sigma. A control chart does not count a range above UPPER times the
# mean: it is a step (NIST/SEMATECH e-Handbook, 6.3.2).
MEAN_RANGE, UPPER = 1.128, 3.267
# Floors, from measurements on Sparks: one dense stream varies by 0 to 0.5 % on one Spark, TP=2 by 3 to 10 % inside a
# run (field reports 001, 002 and 003, djangodevreng/dgx-spark-benchmarks). The others are in between.
DENSE, EXPERTS, STREAMS, SEVERAL_RANKS = 0.025, 0.04, 0.05, 0.08
# Standard deviation between runs that an unchanged server may have. Until earlier runs tell its own, a loss that comes
# by chance with this one is in doubt: all leading figures together are worse by chance with the second probability.
DOUBT, DOUBT_ALARMS = 0.02, 0.015
# A smaller change is not judged, however small the spread: the client is exact to 0.1 %.
SMALLEST = 0.005
# A cumulative sum of losses in bands, each less its allowance: half a band comes by chance and by the error of the
# level. An alarm needs three runs that are almost a band slower, or more that are less.
ALLOWANCE, LIMIT = 0.5, 1.0


def floor(*, streams: int, tensor_parallel: int, experts: bool) -> float:
    """Return the band of a load while there are few earlier runs."""
    if tensor_parallel > 1:
        return SEVERAL_RANKS
    if streams > 1:
        return STREAMS
    return EXPERTS if experts else DENSE


def doubt(comparisons: int, values: float) -> float:
    """Return the band in which a loss is in doubt while the spread between runs is unknown; `values`: Noise.band."""
    return NormalDist().inv_cdf(1 - DOUBT_ALARMS / max(1, comparisons)) * DOUBT * math.sqrt(values)


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
