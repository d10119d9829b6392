"""What the bench measured of a recipe on the owner's Sparks, beside and in its forecast. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_spark.core.types import Document
from vllm_spark.sizing import constants
from vllm_spark.sizing.acceptance import Share
from vllm_spark.sizing.prediction import Prediction, Speed

# A figure that is so many times its forecast, or this part of it, is of another machine or of a wrong recipe.
FARTHEST = 3.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The acceptance of the drafter, the bytes of the peak of loading, lines for a person, and two factors: the median
    of measured to forecast, of the speed and of the time to the first token; None without a figure.

    On public rows of 54 operators the factors bring half of the other loads of the same server within 2.5 % of the
    speed and 7.5 % of the first token, from 6.9 and 14 % (lab/forecast/own_spark.py).
    """

    acceptance: Sequence[Share] = ()
    loading_peak: int = 0
    lines: Sequence[str] = ()
    speed: float | None = None
    first_token: float | None = None

    def applied(self, prediction: Prediction) -> Prediction:
        """Return a prediction with the factors, and the narrower interval of what has one."""
        return replace(
            prediction,
            speeds=[self._applied(speed) for speed in prediction.speeds],
            ceiling=prediction.ceiling * (self.speed or 1.0),
            of_speed=constants.own_interval("speed") if self.speed else prediction.of_speed,
            of_first_token=constants.own_interval("first_token") if self.first_token else prediction.of_first_token,
        )

    def _applied(self, one: Speed) -> Speed:
        speed, first = self.speed or 1.0, self.first_token or 1.0
        served = {name: getattr(one.served, name) * speed for name in ("decode", "total", "after_first")}
        return replace(
            one,
            step=replace(one.step, seconds={cause: part / speed for cause, part in one.step.seconds.items()}),
            served=replace(one.served, first_token_s=one.served.first_token_s * first, **served),
        )


def nothing(hosts: Sequence[str], recipe: Document) -> Measured | None:
    """Stand for a site without evidence."""
    return None
