"""The least speed that an operator accepts, compared with the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.sizing.better import Advice
from vllm_spark.sizing.prediction import Prediction

TOO_SLOW = register("too-slow", runbook="slow")


def too_slow(name: str, prediction: Prediction | None, floor: float, faster: Sequence[Advice]) -> Iterator[Refusal]:
    """Yield a refusal if the forecast of one stream is below `floor` tok/s, or if there is no forecast.

    A floor of 0 accepts every speed. The forecast counts with the lowest acceptance of the drafter, because only the
    operator knows the texts. `faster` are the recommended recipes; the fix names one that reaches the floor.
    """
    if not floor or (prediction and prediction.slow.tokens_per_s >= floor):
        return
    reach = [one.recipe for one in faster if one.slowest >= floor]
    others = f"use {reach[0]}, or " if reach else ""
    yield TOO_SLOW(
        what=f"{name} is predicted at {prediction}" if prediction else f"the speed of {name} is unknown",
        expected=f"at least {floor:g} tok/s for one stream",
        fix=f"{others}lower the minimum speed.",
    )
