"""How far two medians may differ before the difference is more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.node.bench.records import CellRecord, Figure, Key

# Two-sided quantiles of Student's t distribution for a chance of 0.00004, by degrees of freedom. A run has some 25
# judged figures, so one run in a thousand of an unchanged server raises a false alarm.
QUANTILES = (
    *((1, 15915.5), (2, 158.1), (3, 38.03), (4, 19.60), (5, 13.50), (6, 10.67), (8, 8.10), (10, 6.94), (15, 5.73)),
    *((20, 5.24), (30, 4.81), (50, 4.51)),
)
LARGEST_QUANTILE = 4.11
# Standard error of a median, relative to that of a mean (normal values).
MEDIAN_FACTOR = math.sqrt(math.pi / 2)

# Smallest differences that count, whatever the spread within one run: the same server differs by these between runs.
# Dense models repeat within 0.5 %, mixtures of experts within 4 %, pairs within 10 % (perf figures of the field reports
# and of djangodevreng/dgx-spark-benchmarks). Times to a first token include the network and the scheduler.
FLOOR_DENSE = 0.02
FLOOR_MIXTURE = 0.04
FLOOR_SHARED = 0.10
FLOOR_FIRST_TOKEN = 0.10
FIRST_TOKEN = ("first_chunk", "first_token", "first_answer", "prefill")


@dataclass(frozen=True, slots=True)
class Band:
    """The relative difference that noise explains, and what decides it: `spread` or `floor`."""

    width: float
    source: str


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of two runs of one server, by metric and by whether streams share it.

    Few runs of one cell say little of its noise, so the spreads of all cells are pooled: the root of their mean square,
    weighted by degrees of freedom.
    """

    pooled: Mapping[tuple[str, bool], tuple[float, int]]  # (spread, degrees of freedom)

    @classmethod
    def of(cls, *cells: CellRecord) -> Noise:
        """Return the noise of the cells of both runs."""
        squares: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        for cell in cells:
            for metric, figure in cell["figures"].items():
                if figure["spread"] is not None:
                    key = (metric, cell["cell"]["streams"] > 1)
                    squares.setdefault(key, []).append((figure["spread"] ** 2, len(figure["values"]) - 1))
        return cls({key: _pooled(entries) for key, entries in squares.items()})

    def band(self, metric: str, cell: CellRecord, figures: tuple[Figure, Figure], key: Key) -> Band:
        """Return the band around the median of the first figure for the median of the second one."""
        counts = sum(1 / len(figure["values"]) for figure in figures)
        spread, degrees = self.pooled.get((metric, cell["cell"]["streams"] > 1), (0.0, 0))
        own = sum((figure["spread"] or 0.0) ** 2 / len(figure["values"]) for figure in figures)
        noise = MEDIAN_FACTOR * max(_quantile(degrees) * spread * math.sqrt(counts), LARGEST_QUANTILE * math.sqrt(own))
        least = floor(metric, cell, key)
        return Band(noise, "spread") if noise > least else Band(least, "floor")


def _pooled(entries: Sequence[tuple[float, int]]) -> tuple[float, int]:
    degrees = sum(weight for _, weight in entries)
    return math.sqrt(sum(square * weight for square, weight in entries) / degrees), degrees


def floor(metric: str, cell: CellRecord, key: Key) -> float:
    """Return the smallest relative difference that counts."""
    if metric in FIRST_TOKEN:
        return FLOOR_FIRST_TOKEN
    if cell["cell"]["streams"] > 1 or not key["topology"].startswith("1 node"):
        return FLOOR_SHARED
    return FLOOR_MIXTURE if not key["layout"] or "experts=" in key["layout"] else FLOOR_DENSE


def _quantile(degrees: int) -> float:
    """Return the quantile of the next smaller number of degrees in the table, which is the wider one."""
    smaller = [value for limit, value in QUANTILES if limit <= degrees]
    return min(smaller, default=QUANTILES[0][1]) if degrees <= QUANTILES[-1][0] else LARGEST_QUANTILE
