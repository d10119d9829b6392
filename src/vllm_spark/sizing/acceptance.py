"""Share of the drafted tokens that the model accepts, by their number and by the kind of text. Pure.

A token counts only if all before it were accepted, so the share falls with the number of drafted tokens. Field report
004 measured it for 2 to 6 tokens on code. On another text, or with another drafter, each position has a power of the
chance that it has there; the power follows from one measured share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vllm_spark.core.types import Document

# Field report 004: drafted tokens -> share that is accepted, Gemma 4 26B-A4B with its MTP drafter on code.
CODE: Mapping[int, float] = {2: 0.87, 3: 0.84, 4: 0.76, 5: 0.66, 6: 0.56}

# The same report, on prose: the share with four tokens.
PROSE_TOKENS, PROSE = 4, 0.50

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


def expected(tokens: int, known: Sequence[tuple[int, float]] = ()) -> list[float]:
    """Return the shares to expect with `tokens` drafted tokens.

    `known` are measured shares, each with the number of tokens. A share of the same number counts as it is; otherwise
    each is carried over to this number. Without any they are those of prose and of code.
    """
    same = [rate for count, rate in known if count == tokens]
    if same:
        return same
    texts = known or [(PROSE_TOKENS, PROSE), (max(CODE), CODE[max(CODE)])]
    if not known and tokens in CODE:
        return [share(tokens, power_of(PROSE_TOKENS, PROSE)), CODE[tokens]]
    return [share(tokens, power_of(count, rate)) for count, rate in texts]


def of_drafter(drafter: Document) -> list[tuple[int, float]]:
    """Return the measured shares that a recipe's drafter names, each with its number of tokens."""
    tokens = drafter["speculative_tokens"]
    return [(entry.get("tokens", tokens), entry["rate"]) for entry in drafter.get("acceptance", [])]


def measured(drafter: Document) -> list[float]:
    """Return the shares that were measured with this drafter's number of tokens."""
    return [rate for tokens, rate in of_drafter(drafter) if tokens == drafter["speculative_tokens"]]
