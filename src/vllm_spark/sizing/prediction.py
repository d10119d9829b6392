"""Speed and time to the first token of a load, with their intervals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import acceptance, burst, constants, roofline
from vllm_spark.sizing.acceptance import Accepted
from vllm_spark.sizing.burst import Requests, Served
from vllm_spark.sizing.constants import Constants, Interval
from vllm_spark.sizing.layout import Layout
from vllm_spark.sizing.load import Load
from vllm_spark.sizing.roofline import Step

# Tokens of output of each of the requests that ask at once, as in the bench's profile `streams`.
ANSWER = 256


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed at one acceptance. `accepted` is None without a drafter, whose speed is the same on every kind of text.

    `served` is what the streams see if all ask at once, with a prompt as long as the context and ANSWER tokens of
    output.
    """

    accepted: Accepted | None
    step: Step
    served: Served

    @property
    def text(self) -> str:
        """The kind of text; empty without a drafter."""
        return self.accepted.text if self.accepted else ""

    @property
    def tokens_per_s(self) -> float:
        return self.step.tokens_per_s


@dataclass(frozen=True, slots=True)
class Prediction:
    """Decode speed of one sequence by kind of text, time to the first token, and their intervals.

    `speeds` has one entry without a drafter, otherwise one for each kind of text, the highest acceptance first.
    `of_speed` is the interval around each of them, and `of_first_token` that of the time to the first token. `ceiling`
    is the speed in tok/s if every drafted token is accepted; without a drafter it is the predicted speed.
    """

    speeds: Sequence[Speed]
    of_speed: Interval
    of_first_token: Interval
    ceiling: float

    @property
    def spread(self) -> float:
        """Half the width of the interval of a speed, as a share."""
        return self.of_speed.spread

    @property
    def first_token_spread(self) -> float:
        """Half the width of the interval of the time to the first token, as a share."""
        return self.of_first_token.spread

    @property
    def slow(self) -> Speed:
        """The speed at the lowest acceptance."""
        return self.speeds[-1]

    @property
    def fast(self) -> Speed:
        """The speed at the highest acceptance."""
        return self.speeds[0]

    @property
    def first_token_s(self) -> float:
        """The mean over the streams, at the lowest acceptance."""
        return self.slow.served.first_token_s

    def on(self, text: str) -> Speed | None:
        """Return the speed on a kind of text, or None if its acceptance is not known."""
        return next((speed for speed in self.speeds if speed.text in {text, ""}), None)

    def interval(self, speed: Speed | None = None) -> tuple[float, float]:
        """Return the bounds of the speed on a kind of text in tok/s; without one, those of all kinds together."""
        slow, fast = (speed, speed) if speed else (self.slow, self.fast)
        return slow.tokens_per_s * (1 - self.spread), fast.tokens_per_s * (1 + self.spread)

    def figure(self, speed: Speed, where: str = "") -> str:
        """Return the speed on a kind of text with its interval."""
        low, high = self.interval(speed)
        return f"{speed.tokens_per_s:.1f} tok/s{where} (±{self.spread:.0%}: {low:.1f} to {high:.1f})"

    def cell(self) -> str:
        """Return the speed in tok/s for a table: from the lowest to the highest acceptance, and the spread."""
        figures = dict.fromkeys(f"{speed.tokens_per_s:.1f}" for speed in (self.slow, self.fast))
        return f"{' to '.join(figures)} ±{self.spread:.0%}"

    def gains(self, other: Prediction) -> dict[str, float]:
        """Return how many times as fast another one is, by the kinds of text on which both are known. The key is empty
        for the same speed on every kind, and where they share no kind: there the slowest of each are compared."""
        texts = dict.fromkeys(speed.text for speed in (*self.speeds, *other.speeds) if speed.text) or [""]
        pairs = {text: (before, after) for text in texts if (before := self.on(text)) and (after := other.on(text))}
        pairs = pairs or {"": (self.slow, other.slow)}
        return {text: after.tokens_per_s / before.tokens_per_s for text, (before, after) in pairs.items()}

    def gain(self, other: Prediction) -> float:
        """Return the least of the gains."""
        return min(self.gains(other).values())

    def __str__(self) -> str:
        if len(self.speeds) == 1:
            return self.figure(self.slow, f" on {self.slow.text}" if self.slow.text else "")
        slow, fast = (f"{speed.tokens_per_s:.1f}" for speed in (self.slow, self.fast))
        return f"{slow} tok/s on {self.slow.text} to {fast} on {self.fast.text} (each ±{self.spread:.0%})"


def predict(
    architecture: Architecture,
    layout: Layout,
    load: Load,
    site: Constants | None = None,
    accepted: Sequence[Accepted] = (),
) -> Prediction:
    """Return the prediction for a load.

    `accepted` are acceptances for the drafter's number of tokens; without any, those of prose and of code are used. The
    acceptance of `load.drafter` is ignored.
    """
    drafter, known = load.drafter, site or constants.constants_of({})
    requests = Requests(load.streams, max(1, load.context), ANSWER, batched=load.batched)

    def loaded(share: float) -> Load:
        return replace(load, drafter=replace(drafter, acceptance=share) if drafter else None)

    def at(share: float) -> Step:
        return roofline.step(architecture, layout, loaded(share), known)

    def speed(one: Accepted | None) -> Speed:
        share = one.rate if one else 0.0
        return Speed(one, at(share), burst.serve(architecture, layout, loaded(share), requests, known))

    shares = (accepted or acceptance.expected(drafter.tokens)) if drafter else ()
    by_rate = sorted(shares, key=lambda one: one.rate, reverse=True)
    return Prediction(
        speeds=[speed(one) for one in by_rate or (None,)],
        of_speed=constants.speed_interval(
            several=load.tensor_parallel > 1, drafter=drafter is not None, streams=load.streams
        ),
        of_first_token=constants.first_token_interval(requests.prompt),
        ceiling=at(1.0).tokens_per_s,
    )
