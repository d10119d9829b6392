"""The recipes that a forecast names as better: the fastest ones, for each kind of text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from vllm_spark.core.types import Document
from vllm_spark.recipe import architecture
from vllm_spark.sizing.expected import fastest
from vllm_spark.sizing.prediction import Prediction

# A recipe of the same model is recommended if it is faster by more than two operators differ; one of another model, if
# it is much faster.
FASTER, MUCH_FASTER = 1.2, 2.0

# Operators with the same configuration differ by 8 %. What a forecast does not part, the reported speed does.
AS_FAST = 1.08


class Candidate(NamedTuple):
    """A recipe, its speed, and how many streams it serves at once: the others wait."""

    recipe: Document
    speed: Prediction
    streams: int


class Advice(NamedTuple):
    """A recommended recipe, its speed in tok/s on the text with the lowest acceptance, and the line for an operator."""

    recipe: str
    slowest: float
    line: str


def family(recipe: Document) -> str:
    """Return the family of the architecture of a recipe's model."""
    return architecture.of_recipe(recipe, recipe["model"]["architecture"]).family


def advice(own: Candidate, others: Sequence[Candidate]) -> list[Advice]:
    """Return the recommended recipes: the fastest ones of the same model, and those of the same family.

    Which one is the fastest depends on the text if their drafters are accepted on different kinds of it.
    """
    model = own.recipe["model"]["architecture"]
    same = [one for one in others if one.recipe["model"]["architecture"] == model]
    kin = [one for one in others if one not in same and family(one.recipe) == family(own.recipe)]
    return [
        *_told(_fastest(own, same, FASTER), lambda _: "the same model"),
        *_told(_fastest(own, kin, MUCH_FASTER), lambda name: f"another model of the family, {name}"),
    ]


def raised(own: Candidate, more: Candidate, streams: int) -> Iterator[Advice]:
    """Yield the advice to serve all streams at once, if that is faster. `more` is the recipe as it would serve them."""
    if _together(more)[0] >= FASTER * _together(own)[0]:
        limit = f"raise overrides.args.max-num-seqs from {own.streams} to {streams}"
        line = f"{limit}: {_figure(more, more.speed)} in place of {_figure(own, own.speed)}"
        yield Advice(own.recipe["name"], more.speed.slow.tokens_per_s, line)


def _together(one: Candidate) -> tuple[float, float]:
    """Return the least and the greatest speed in tok/s of all streams that are served at once."""
    return one.speed.slow.tokens_per_s * one.streams, one.speed.fast.tokens_per_s * one.streams


def _figure(one: Candidate, speed: Prediction) -> str:
    """Return a speed: of one stream, or of all that are served at once, which is what a gain compares."""
    if one.streams == 1:
        return str(speed)
    totals = dict.fromkeys(f"{total:.0f}" for total in _together(one._replace(speed=speed)))
    return f"{' to '.join(totals)} tok/s together, {one.streams} streams at once"


def _fastest(own: Candidate, others: Sequence[Candidate], least: float) -> list[tuple[Candidate, dict[str, float]]]:
    """Return each recipe that is the fastest on a kind of text, with the gain on its kinds; the highest gain first.

    On a kind of text on which its speed is not known a recipe competes with its slowest.
    """
    rated = [(one, _gains(own, one)) for one in others]
    texts = dict.fromkeys(text for _, gains in rated for text in gains)
    won: dict[str, tuple[Candidate, dict[str, float]]] = {}
    for text in [text for text in texts if text] or texts:
        race = [(gains.get(text, min(gains.values())), one) for one, gains in rated]
        limit = max(least, max(gain for gain, _ in race) / AS_FAST)
        if fast := [(fastest(one.recipe) or 0.0, gain, one) for gain, one in race if gain >= limit]:
            _, gain, best = max(fast, key=lambda entry: entry[:2])
            won.setdefault(best.recipe["name"], (best, {}))[1][text] = gain
    return sorted(won.values(), key=lambda entry: min(entry[1].values()), reverse=True)


def _gains(own: Candidate, other: Candidate) -> dict[str, float]:
    """Return how many times as fast another recipe is by kind of text, for all streams of the load together."""
    return {text: gain * other.streams / own.streams for text, gain in own.speed.gains(other.speed).items()}


def _told(best: Sequence[tuple[Candidate, dict[str, float]]], which: Callable[[str], str]) -> Iterator[Advice]:
    for one, gains in best:
        recipe, speed = one.recipe, one.speed
        shown = replace(speed, speeds=[one for one in speed.speeds if one.text in gains] or speed.speeds)
        times = " to ".join(dict.fromkeys(f"{gain:.1f}" for gain in (min(gains.values()), max(gains.values()))))
        line = f"{recipe['name']}: {_figure(one, shown)}, {times} times as fast; {which(recipe['model']['repository'])}"
        yield Advice(recipe["name"], speed.slow.tokens_per_s, line)
