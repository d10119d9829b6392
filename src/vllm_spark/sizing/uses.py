"""What a model server is for, and the recipes for it that fit the Sparks of an owner. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.types import Document, Facts
from vllm_spark.recipe import lockfile
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import pairs, verdict
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest


@dataclass(frozen=True, slots=True)
class Use:
    """A use: the gates that a recipe for it has, and the streams of the figure that decides."""

    name: str
    gates: tuple[str, ...] = ()
    streams: int = 1

    @property
    def word(self) -> str:
        """The word of a command line."""
        return self.name.partition(" ")[0]


USES = (
    Use("chat"),
    Use("code with tools", gates=("tools", "structured", "reasoning")),
    Use("pictures", gates=("vision",)),
    Use("many streams", streams=8),
)


def figure_of(document: Document, streams: int) -> Mapping[str, Any] | None:
    """Return the reported decode speed with so many streams, or None."""
    figures = (one for one in document.get("expected", ()) if one["metric"] == "decode" and one["unit"] == "tok/s")
    return next((one for one in figures if one.get("cell", {}).get("streams") == streams), None)


def has_gates(document: Document, use: Use) -> bool:
    """Return True if a recipe has every gate of the use."""
    return set(use.gates) <= set(document["gates"])


def fitting(documents: Sequence[Document], use: Use, groups: Sequence[Mapping[str, Facts]]) -> list[Forecast]:
    """Return the forecasts of the pinned recipes for a use that fit each group, the one to propose first.

    A group has the facts of the Sparks of one server, the head's first. The highest reported speed comes first, as in
    README's table; recipes without one follow, by forecast. One that cannot be foreseen counts by its reported speed.
    """
    fits: list[tuple[tuple[float, float], Forecast]] = []
    for document in documents:
        usable = len(groups[0]) == document["topology"]["nodes"] and has_gates(document, use)
        if usable and not lockfile.missing_pins(document, Lock()):
            foreseen = [forecast_of(document, use, group) for group in groups]
            figure, speed = figure_of(document, use.streams), foreseen[0].prediction
            reported = figure["value"] if figure else 0.0
            if all(one.go for one in foreseen) and speed and not pairs.unranked(document, ForecastContext().constants):
                fits.append(((reported, speed.slow.tokens_per_s), foreseen[0]))
            elif figure and not any(one.refusals or one.model for one in foreseen):
                fits.append(((reported, 0.0), foreseen[0]))
    return [one for _, one in sorted(fits, key=lambda fit: fit[0], reverse=True)]


def forecast_of(document: Document, use: Use, group: Mapping[str, Facts]) -> Forecast:
    """Return the forecast of a recipe with the streams of a use."""
    return verdict.judged(document, group, ForecastRequest(streams=use.streams), ForecastContext())
