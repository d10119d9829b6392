"""Places for labels inside a drawing: no label on another one, and none outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vllm_spark.bench.report import svg

Anchor = Literal["start", "middle", "end"]
Box = tuple[float, float, float, float]
ASCENT, DESCENT = 0.95, 0.28


@dataclass(slots=True)
class Placer:
    """Boxes that are taken, in the drawing's units: left, top, right, bottom."""

    bounds: Box
    size: float
    taken: list[Box] = field(default_factory=list)

    def box(self, x: float, y: float, words: str, anchor: Anchor) -> Box:
        """Return the box of a text with its baseline at y."""
        wide = svg.width(words, self.size)
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * wide
        return (left, y - ASCENT * self.size, left + wide, y + DESCENT * self.size)

    def take(self, box: Box) -> None:
        """Keep a box free of labels."""
        self.taken.append(box)

    def first_free(self, words: str, places: list[tuple[float, float, Anchor]]) -> tuple[float, float, Anchor] | None:
        """Return the first of these places that is free, and take it. Returns None if there is none."""
        for x, y, anchor in places:
            box = self.box(x, y, words, anchor)
            if self._inside(box) and not any(_overlap(box, other) for other in self.taken):
                self.take(box)
                return x, y, anchor
        return None

    def _inside(self, box: Box) -> bool:
        left, top, right, bottom = self.bounds
        return left <= box[0] and top <= box[1] and box[2] <= right and box[3] <= bottom


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
