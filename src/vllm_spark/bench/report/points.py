"""Points of a line, and samples along the time thinned to points so that no peak is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median


@dataclass(frozen=True, slots=True)
class Point:
    """A point, the smallest and the largest value behind it, and the text of its tooltip."""

    x: float
    y: float
    low: float
    high: float
    title: str = ""


def thin(samples: Sequence[tuple[float, float]], count: int) -> tuple[Point, ...]:
    """Return at most `count` points of (time, value) pairs in order of time. Few samples stay as they are."""
    ordered = sorted(samples)
    if len(ordered) <= count:
        return tuple(Point(t, value, value, value) for t, value in ordered)
    first, span = ordered[0][0], (ordered[-1][0] - ordered[0][0]) or 1.0
    parts = groupby(ordered, key=lambda sample: min(count - 1, int((sample[0] - first) / span * count)))
    return tuple(_point([*part]) for _, part in parts)


def _point(samples: Sequence[tuple[float, float]]) -> Point:
    values = [value for _, value in samples]
    return Point(fmean(t for t, _ in samples), fmean(values), min(values), max(values))


def unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the parts between gaps. A gap is longer than 30 s and longer than six usual distances of two points."""
    usual = median([after.x - before.x for before, after in pairwise(points)] or [0.0])
    part: list[Point] = []
    for point in points:
        if part and point.x - part[-1].x > max(30.0, 6 * usual):
            yield part
            part = []
        part.append(point)
    if part:
        yield part
