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

    @property
    def family(self) -> str | None:
        """The family of the model's architecture."""
        return architecture.of_recipe(self.recipe, self.recipe["model"]["architecture"]).family


class Advice(NamedTuple):
    """A recommended recipe, its speed in tok/s on the text with the lowest acceptance, and the line for an operator."""

    recipe: str
    slowest: float
    line: str


def advice(own: Candidate, others: Sequence[Candidate]) -> list[Advice]:
    """Return the recommended recipes: the fastest ones of the same model, and those of the same family.

    Which one is the fastest depends on the text if their drafters are accepted on different kinds of it.
    """
    model = own.recipe["model"]["architecture"]
    same = [one for one in others if one.recipe["model"]["architecture"] == model]
    family = [one for one in others if one not in same and one.family == own.family]
    return [
        *_told(_fastest(own, same, FASTER), lambda _: "the same model"),
        *_told(_fastest(own, family, MUCH_FASTER), lambda name: f"another model of the family, {name}"),
    ]


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
    for (recipe, speed, _), gains in best:
        shown = replace(speed, speeds=[one for one in speed.speeds if one.text in gains] or speed.speeds)
        times = " to ".join(dict.fromkeys(f"{gain:.1f}" for gain in (min(gains.values()), max(gains.values()))))
        line = f"{recipe['name']}: {shown}, {times} times as fast; {which(recipe['model']['repository'])}"
        yield Advice(recipe["name"], speed.slow.tokens_per_s, line)
