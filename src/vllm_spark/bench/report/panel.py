"""A panel: lines with markers over one axis, with spread, values and the letter of each series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from vllm_spark.bench.report import marks, svg, text
from vllm_spark.bench.report.frame import FONT, Frame, margin
from vllm_spark.bench.report.placing import Anchor, Placer
from vllm_spark.bench.report.scale import Axis

WIDTH, HEIGHT = 360.0, 206.0
TOP, BELOW = 28.0, 42.0
# Labels of values in panels with more points would be more ink than the lines.
MAX_LABELLED = 24
# Places of a value beside its point, the best first. Points that are nearer than NEAR across and nearer than FAR up or
# down could be mistaken for each other: the farthest place is 26 units away.
SIDES: tuple[tuple[float, float, Anchor], ...] = (
    *((0.0, -8.0, "middle"), (0.0, 18.0, "middle")),
    *((6.0, -5.0, "start"), (-6.0, -5.0, "end"), (6.0, 14.0, "start"), (-6.0, 14.0, "end")),
    *((6.0, -12.0, "start"), (-6.0, -12.0, "end"), (6.0, 20.0, "start"), (-6.0, 20.0, "end")),
    *((0.0, -16.0, "middle"), (0.0, 26.0, "middle")),
)
NEAR, FAR = 30.0, 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """A point, the smallest and largest value behind it, and the text of its tooltip."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True, slots=True)
class Series:
    """A line of points. `index` selects marker, dashes and colour; `key` is the letter at its end."""

    index: int
    key: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel shows. Both labels name a unit. Axes are shared by the panels of a plot."""

    title: str
    x_label: str
    y_label: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


def draw(panel: Panel) -> Markup:
    """Return the panel as an svg."""
    several = len(panel.series) > 1
    left = margin(panel.y)
    room = max((svg.width(series.key, FONT) for series in panel.series), default=0) if several else 0
    frame = Frame(panel.x, panel.y, left, TOP, WIDTH - 18 - room, HEIGHT - BELOW)
    placer = Placer((left - 3, TOP - 10, WIDTH, frame.bottom - 2), FONT)
    parts = [frame.grid(), frame.names(panel.x_label, panel.y_label)]
    parts += [_line(series, frame, placer) for series in panel.series]
    if several:
        parts += [_key(series, frame, placer) for series in panel.series]
    if sum(len(series.points) for series in panel.series) <= MAX_LABELLED:
        others = [frame.at(point.x, point.y) for series in panel.series for point in series.points]
        parts += [_values(series, frame, placer, others) for series in panel.series]
    return svg.drawing(WIDTH, HEIGHT, f"{panel.title}: {panel.y_label} by {panel.x_label}", _spoken(panel), *parts)


def _spoken(panel: Panel) -> str:
    return ". ".join(
        f"{series.key}: " + ", ".join(f"{text.length(point.x)} → {text.number(point.y)}" for point in series.points)
        for series in panel.series
    )


def _line(series: Series, frame: Frame, placer: Placer) -> Markup:
    places = [frame.at(point.x, point.y) for point in series.points]
    parts = [svg.element("path", d=svg.path(places), class_=f"l {marks.style(series.index)}")]
    for point, (x, y) in zip(series.points, places, strict=True):
        low, high = frame.at(point.x, point.low)[1], frame.at(point.x, point.high)[1]
        bar = svg.element("path", d=f"M{x:.1f} {low:.1f}V{high:.1f}", class_=f"w {marks.style(series.index)}")
        hit = svg.element("circle", cx=x, cy=y, r=11, class_="hit")
        title = svg.element("title", text.plain(point.title))
        parts.append(svg.element("g", title, bar if low - high > 1 else "", marks.marker(x, y, series.index), hit))
        placer.take((x - 5, y - 5, x + 5, y + 5))
    for before, after in pairwise(places):
        for share in (0.1, 0.25, 0.4, 0.55, 0.7, 0.85):
            x, y = before[0] + share * (after[0] - before[0]), before[1] + share * (after[1] - before[1])
            placer.take((x - 2, y - 2, x + 2, y + 2))
    return Markup("").join(parts)


def _key(series: Series, frame: Frame, placer: Placer) -> Markup:
    """Return the letter to the right of the last point, moved up or down until it is free."""
    x, y = frame.at(series.points[-1].x, series.points[-1].y)
    offsets = [0, *(sign * step for step in range(6, 90, 4) for sign in (-1, 1))]
    place = placer.first_free(series.key, [(x + 8, y + 4 + offset, "start") for offset in offsets])
    return svg.label(place[0], place[1], series.key, class_=f"key {marks.style(series.index)}") if place else Markup()


def _values(series: Series, frame: Frame, placer: Placer, others: Sequence[tuple[float, float]]) -> Markup:
    """Return the values of the points. A value without a free place is left out; the table of the cells has it.

    A value must not look like that of another point: it is above its point if another one is just below, and vice
    versa."""
    parts = []
    for point in series.points:
        x, y = frame.at(point.x, point.y)
        near = [other for across, other in others if abs(across - x) < NEAR and 0 < abs(other - y) < FAR]
        words = text.number(point.y)
        sides = [
            (x + across, y + down, anchor)
            for across, down, anchor in SIDES
            if not (down > 0 and any(other > y for other in near))
            and not (down < 0 and any(other < y for other in near))
        ]
        if place := placer.first_free(words, sides):
            parts.append(svg.label(place[0], place[1], words, place[2], class_="value"))
    return Markup("").join(parts)
