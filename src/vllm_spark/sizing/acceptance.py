"""Share of the drafted tokens that the model accepts, by their number and by the kind of text. Pure.

A token counts only if all before it were accepted, so the share falls with the number of drafted tokens. Field report
004 measured it for 2 to 6 tokens on code. On another text, or with another drafter, each position has a power of the
chance that it has there; the power follows from one measured share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vllm_spark.core.types import Document


class Share(NamedTuple):
    """A measured share: the kind of text, the drafted tokens of a step, and the share of them that was accepted.

    `hosts` are the owner's Sparks on which it was measured; it is empty for a figure of a recipe's sources.
    """

    load: str
    tokens: int
    rate: float
    hosts: str = ""


class Accepted(NamedTuple):
    """The share of the drafted tokens that is expected on a kind of text.

    `measured` is the share that it is, or follows from; None if this drafter has no figure.
    """

    text: str
    rate: float
    measured: Share | None = None


# Field report 004: drafted tokens -> share that is accepted, Gemma 4 26B-A4B with its MTP drafter on code.
CODE: Mapping[int, float] = {2: 0.87, 3: 0.84, 4: 0.76, 5: 0.66, 6: 0.56}

# The same report, on prose: the share with four tokens.
PROSE_TOKENS, PROSE = 4, 0.50

# What a drafter without a figure is expected to reach.
USUAL = (Share("prose", PROSE_TOKENS, PROSE), *(Share("code", tokens, rate) for tokens, rate in CODE.items()))

# The chance that the first token is accepted, which the report does not have: the two of its first row are near it.
FIRST = 0.90

# Powers between which one is sought, and the steps of the search.
LEAST_POWER, GREATEST_POWER, STEPS = 0.02, 20.0, 60


def survival(tokens: int) -> list[float]:
    """Return the chance that each of `tokens` drafted tokens is accepted on code; behind the sixth it stays."""
    accepted = {1: FIRST} | {count: count * share for count, share in CODE.items()}
    chances = [accepted[count] - accepted.get(count - 1, 0.0) for count in sorted(accepted)]
    chances = [min(chances[: number + 1]) for number in range(len(chances))]
    return (chances + chances[-1:] * tokens)[:tokens]


def share(tokens: int, power: float) -> float:
    """Return the share of `tokens` drafted tokens that is accepted on a text of this power; 1 is code."""
    return math.fsum(chance**power for chance in survival(tokens)) / tokens


def power_of(tokens: int, measured: float) -> float:
    """Return the power of a text on which a share of `tokens` drafted tokens was accepted."""
    low, high = LEAST_POWER, GREATEST_POWER
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if share(tokens, middle) > measured else (low, middle)
    return low


def expected(tokens: int, known: Sequence[Share] = ()) -> list[Accepted]:
    """Return what to expect with `tokens` drafted tokens, once for each kind of text that `known` has.

    The share with the nearest number of tokens counts: as it is if the number is the same, otherwise carried over to
    this number. Without any `known` the shares are those of prose and of code in field report 004.
    """
    return [
        Accepted(one.load, _carried_over(tokens, one), one if known else None)
        for one in nearest(tokens, known or USUAL)
    ]


def _carried_over(tokens: int, known: Share) -> float:
    return known.rate if known.tokens == tokens else share(tokens, power_of(known.tokens, known.rate))


def nearest(tokens: int, known: Sequence[Share]) -> list[Share]:
    """Return the share of each kind of text whose number of drafted tokens is nearest to `tokens`."""
    loads = dict.fromkeys(one.load for one in known)
    return [min((one for one in known if one.load == load), key=lambda one: abs(one.tokens - tokens)) for load in loads]


def of_drafter(drafter: Document) -> list[Share]:
    """Return the measured shares that a recipe's drafter names."""
    return [Share(entry["load"], entry["tokens"], entry["rate"]) for entry in drafter.get("acceptance", [])]
