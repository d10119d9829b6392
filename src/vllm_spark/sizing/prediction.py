"""Speed and time to the first token of a load, with the interval that the family of the model allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import acceptance, burst, constants, roofline
from vllm_spark.sizing.burst import Requests
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.layout import Layout
from vllm_spark.sizing.load import Load
from vllm_spark.sizing.roofline import Step


@dataclass(frozen=True, slots=True)
class Prediction:
    """Decode speed of one sequence, time to the first token, and their intervals.

    With a drafter, `slow` and `fast` are the steps at the lowest and the highest acceptance. `spread` is half the width
    of the interval, as a share, and `first_token_spread` that of the time to the first token. `first_token_s` is the
    mean over the streams, which all ask at once with a prompt as long as the context. `ceiling` is the speed in tok/s
    if every drafted token is accepted; without a drafter it is the predicted speed. `known` is False for a family
    without rows, whose interval is that of a family left out.
    """

    slow: Step
    fast: Step
    accepted: tuple[float, float]
    spread: float
    ceiling: float
    first_token_s: float = 0.0
    first_token_spread: float = 0.0
    known: bool = True

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

    def at(share: float) -> Step:
        drafting = replace(drafter, acceptance=share) if drafter else None
        return roofline.step(architecture, layout, replace(load, drafter=drafting), known)

    shares = (accepted or acceptance.expected(drafter.tokens)) if drafter else (0.0,)
    prompts = Requests(load.streams, max(1, load.context), 2, batched=load.batched)
    interval = constants.interval(architecture.family)
    several = load.tensor_parallel > 1 or drafter is not None
    return Prediction(
        slow=at(min(shares)),
        fast=at(max(shares)),
        accepted=(min(shares), max(shares)),
        spread=max(interval.speed, interval.several) if several else interval.speed,
        ceiling=at(1.0).tokens_per_s,
        first_token_s=burst.serve(architecture, layout, replace(load, drafter=None), prompts, known).first_token_s,
        first_token_spread=interval.first_token,
        known=interval.known,
    )
