"""What the bench measured of a recipe on the owner's Sparks, beside and in its forecast. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_spark.core.types import Document
from vllm_spark.sizing.acceptance import Share
from vllm_spark.sizing.prediction import Prediction, Speed

# A figure that is so many times its forecast, or this part of it, is of another machine or of a wrong recipe.
FARTHEST = 3.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The acceptance of the drafter, the bytes of the peak of loading, lines for a person, and two factors: the median
    of measured to forecast, of the speed and of the time to the first token.

    On public rows of seven operators the factors bring another load of the same server as near as a fit of seven
    constants did: speed from 12.9 to 7.1 %, first token from 28.9 to 5.9 % (lab/forecast/own_spark.py).
    """

    acceptance: Sequence[Share] = ()
    loading_peak: int = 0
    lines: Sequence[str] = ()
    speed: float = 1.0
    first_token: float = 1.0

    def applied(self, prediction: Prediction) -> Prediction:
        """Return a prediction with the factors."""
        speeds = [self._applied(speed) for speed in prediction.speeds]
        return replace(prediction, speeds=speeds, ceiling=prediction.ceiling * self.speed)

    def _applied(self, one: Speed) -> Speed:
        served = {name: getattr(one.served, name) * self.speed for name in ("decode", "total", "after_first")}
        return replace(
            one,
            step=replace(one.step, seconds={cause: part / self.speed for cause, part in one.step.seconds.items()}),
            served=replace(one.served, first_token_s=one.served.first_token_s * self.first_token, **served),
        )


def nothing(hosts: Sequence[str], recipe: Document) -> Measured | None:
    """Stand for a site without evidence."""
    return None
