"""Speed and time to the first token of a load, with the interval that the family of the model allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import acceptance, burst, constants, roofline
from vllm_spark.sizing.burst import Requests, Served
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.layout import Layout
from vllm_spark.sizing.load import Load
from vllm_spark.sizing.roofline import Step

# Tokens of output of each of the requests that ask at once, as in the bench's profile `streams`.
ANSWER = 256


@dataclass(frozen=True, slots=True)
class Prediction:
    """Decode speed of one sequence, time to the first token, and their intervals.

    With a drafter, `slow` and `fast` are the steps at the lowest and the highest acceptance. `spread` is half the width
    of the interval, as a share, and `first_token_spread` that of the time to the first token. `served` is what the
    streams see at the lowest and at the highest acceptance if all ask at once, with a prompt as long as the context and
    ANSWER tokens of output. `ceiling` is the speed in tok/s if every drafted token is accepted; without a drafter it is
    the predicted speed. `known` is False for a family without rows, whose interval is that of a family left out.
    """

    slow: Step
    fast: Step
    accepted: tuple[float, float]
    spread: float
    ceiling: float
    served: tuple[Served, Served]
    first_token_spread: float = 0.0
    known: bool = True

    @property
    def first_token_s(self) -> float:
        """The mean over the streams, at the lowest acceptance."""
        return self.served[0].first_token_s

    @property
    def low(self) -> float:
        return self.slow.tokens_per_s * (1 - self.spread)

    @property
    def high(self) -> float:
        return self.fast.tokens_per_s * (1 + self.spread)

    def __str__(self) -> str:
        slow, fast = f"{self.slow.tokens_per_s:.1f}", f"{self.fast.tokens_per_s:.1f}"
        figure = slow if slow == fast else f"{slow} to {fast}"
        return f"{figure} tok/s (±{self.spread:.0%}: {self.low:.1f} to {self.high:.1f})"


def predict(
    architecture: Architecture,
    layout: Layout,
    load: Load,
    site: Constants | None = None,
    accepted: Sequence[float] = (),
) -> Prediction:
    """Return the prediction for a load.

    `accepted` are acceptances for the drafter's number of tokens; without any, those of prose and of code are used. The
    acceptance of `load.drafter` is ignored.
    """
    drafter, known = load.drafter, site or constants.constants_of({})

    def loaded(share: float) -> Load:
        return replace(load, drafter=replace(drafter, acceptance=share) if drafter else None)

    def at(share: float) -> Step:
        return roofline.step(architecture, layout, loaded(share), known)

    def served(share: float) -> Served:
        return burst.serve(architecture, layout, loaded(share), requests, known)

    shares = (accepted or acceptance.expected(drafter.tokens)) if drafter else (0.0,)
    slow, fast = min(shares), max(shares)
    requests = Requests(load.streams, max(1, load.context), ANSWER, batched=load.batched)
    interval = constants.interval(architecture.family)
    several = load.tensor_parallel > 1 or drafter is not None
    slowest = served(slow)
    return Prediction(
        slow=at(slow),
        fast=at(fast),
        accepted=(slow, fast),
        spread=max(interval.speed, interval.several) if several else interval.speed,
        ceiling=at(1.0).tokens_per_s,
        served=(slowest, slowest if slow == fast else served(fast)),
        first_token_spread=interval.first_token,
        known=interval.known,
    )
