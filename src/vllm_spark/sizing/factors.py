"""Factors between the constants of a server on the owner's Sparks and those of the toolkit, from its figures. Pure.

Constants of one kind share a factor: a Spark whose memory is slower reads everything slower. The factors are those
that make the errors of the predictions smallest (least squares of their logarithms). Each has a prior of 1, as wide as
public Sparks differ. A factor that the figures do not narrow is unknown, and stays 1. Factors of one server do not
make the forecasts of another one better, not on the same Spark either (lab/forecast/own_spark.py), so they are not
carried over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.sizing.constants import Constants


@dataclass(frozen=True, slots=True)
class Kind:
    """Constants that share a factor. `leading` stands for them, with its unit; hardware.yml has its physical bounds.

    `prior` is the standard deviation of the factor's logarithm among servers.
    """

    leading: str
    what: str
    unit: str
    prior: float
    others: tuple[str, ...] = ()

    @property
    def constants(self) -> tuple[str, ...]:
        return (self.leading, *self.others)


KINDS = (
    Kind("bandwidth", "memory bandwidth", "B/s", 0.06),
    Kind(
        "feed_forward_s",
        "overhead of a layer, with that of a step",
        "s",
        0.30,
        ("attention_s", "delta_s", "mamba_s", "expert_s", "step_s", "sequence_s", "draft_s"),
    ),
    Kind(
        "compute_16",
        "arithmetic of prompts, here in BF16",
        "FLOP/s",
        0.30,
        (
            "compute_8",
            "compute_8_marlin",
            "compute_4",
            "compute_4_marlin",
            "compute_attention",
            "compute_triton",
            "compute_delta",
            "compute_mamba",
        ),
    ),
    Kind("all_reduce_s", "latency of an all-reduce", "s", 0.60),
    Kind("link", "bandwidth of an all-reduce", "B/s", 0.60),
)

# How exactly a forecast with the right factors meets a figure, as the standard deviation of the error's logarithm.
NOISE = {"decode": 0.05, "total": 0.08, "first token": 0.15}
# Figures of one server share causes of error, so they count as this many.
INDEPENDENT = 4
# A factor is known if the measurements leave less than this share of its prior.
KNOWN = 0.9

STEPS, DIFFERENCE = 4, 1e-3
# No factor is sought beyond this logarithm: a server that is no Spark has none.
FARTHEST = 3.0

# The interval of a server with its own factors: so many standard deviations of what is left hold 90 %. With fewer
# figures, or below the least width, it stays as it is.
DEVIATIONS, LEAST_FIGURES, LEAST_WIDTH = 1.64, 4, 0.05


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured figure and its prediction with given constants. `metric` is one of NOISE, in tok/s or s."""

    metric: str
    measured: float
    predicted: Callable[[Constants], float]


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor, and the standard deviation of its logarithm. `reference` is the toolkit's leading constant."""

    kind: Kind
    value: float
    spread: float
    reference: float

    @property
    def constant(self) -> float:
        """The leading constant of the server, in the kind's unit."""
        return self.value * self.reference


def applied(constants: Constants, factors: Mapping[str, float]) -> Constants:
    """Return the constants with factors, by leading constant."""
    all_of = {name: factors[kind.leading] for kind in KINDS if kind.leading in factors for name in kind.constants}
    return constants.multiplied(all_of)


def width(constants: Constants, observations: Sequence[Observation], known: int) -> float | None:
    """Return half the width of the interval that what is left of the errors gives, as a share; None for few figures.

    `known` is the number of factors that the observations gave.
    """
    if len(observations) < LEAST_FIGURES:
        return None
    left = math.fsum(math.log(one.predicted(constants) / one.measured) ** 2 for one in observations)
    return max(LEAST_WIDTH, DEVIATIONS * math.sqrt(left / max(1, len(observations) - known)))


def measured(constants: Constants, observations: Sequence[Observation]) -> list[Factor]:
    """Return the known factors of a server: those that fit its figures best (Gauss-Newton, with the priors)."""
    weights = _weights(observations)
    logs = [0.0] * len(KINDS)
    spreads = [kind.prior for kind in KINDS]
    for _ in range(STEPS):
        errors = _errors(constants, observations, logs)
        slopes = [_slope(constants, observations, logs, number, errors) for number in range(len(KINDS))]
        curvature = [
            [math.fsum(w * a * b for w, a, b in zip(weights, one, other, strict=True)) for other in slopes]
            for one in slopes
        ]
        for number, kind in enumerate(KINDS):
            curvature[number][number] += kind.prior**-2
        pull = [
            math.fsum(w * s * e for w, s, e in zip(weights, slope, errors, strict=True)) + log / kind.prior**2
            for slope, log, kind in zip(slopes, logs, KINDS, strict=True)
        ]
        covariance = inverse(curvature)
        logs = [
            min(FARTHEST, max(-FARTHEST, log - math.fsum(a * b for a, b in zip(row, pull, strict=True))))
            for log, row in zip(logs, covariance, strict=True)
        ]
        spreads = [math.sqrt(covariance[number][number]) for number in range(len(KINDS))]
    found = [
        Factor(kind, math.exp(log), spread, getattr(constants, kind.leading))
        for kind, log, spread in zip(KINDS, logs, spreads, strict=True)
    ]
    return [factor for factor in found if factor.spread < KNOWN * factor.kind.prior]


def _weights(observations: Sequence[Observation]) -> list[float]:
    counts = Counter(one.metric for one in observations)
    return [min(1.0, INDEPENDENT / counts[one.metric]) / NOISE[one.metric] ** 2 for one in observations]


def _errors(constants: Constants, observations: Sequence[Observation], logs: Sequence[float]) -> list[float]:
    factors = {kind.leading: math.exp(log) for kind, log in zip(KINDS, logs, strict=True)}
    site = applied(constants, factors)
    return [math.log(one.predicted(site) / one.measured) for one in observations]


def _slope(
    constants: Constants,
    observations: Sequence[Observation],
    logs: Sequence[float],
    number: int,
    errors: Sequence[float],
) -> list[float]:
    """Return how the errors change with the logarithm of one factor."""
    moved = [log + DIFFERENCE * (place == number) for place, log in enumerate(logs)]
    later = _errors(constants, observations, moved)
    return [(after - before) / DIFFERENCE for before, after in zip(errors, later, strict=True)]


def inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of a symmetric positive matrix (Gauss-Jordan)."""
    size = len(matrix)
    rows = [[*row, *(float(column == number) for column in range(size))] for number, row in enumerate(matrix)]
    for number in range(size):
        rows[number] = [value / rows[number][number] for value in rows[number]]
        for other in range(size):
            if other != number:
                share = rows[other][number]
                rows[other] = [a - share * b for a, b in zip(rows[other], rows[number], strict=True)]
    return [row[size:] for row in rows]
