"""A panel: lines with markers over one axis, with spread, values and the letter of each series."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import marks, svg, text
from vllm_spark.bench.report.frame import FONT, Frame, margin
from vllm_spark.bench.report.placing import Anchor, Placer
from vllm_spark.bench.report.scale import Axis

WIDTH, HEIGHT = 360.0, 232.0
TOP, BELOW = 28.0, 42.0
# Labels of values in panels with more points would be more ink than the lines.
MAX_LABELLED = 24


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
    frame = Frame(panel.x, panel.y, left, TOP, WIDTH - 14 - room, HEIGHT - BELOW)
    placer = Placer((0.0, TOP - 8, WIDTH, frame.bottom - 2), FONT)
    parts = [frame.grid(), frame.names(panel.x_label, panel.y_label)]
    parts += [_line(series, frame, placer) for series in panel.series]
    if several:
        parts += [_key(series, frame, placer) for series in panel.series]
    if sum(len(series.points) for series in panel.series) <= MAX_LABELLED:
        parts += [_values(series, frame, placer) for series in panel.series]
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
    return Markup("").join(parts)


def _key(series: Series, frame: Frame, placer: Placer) -> Markup:
    """Return the letter to the right of the last point, moved up or down until it is free."""
    x, y = frame.at(series.points[-1].x, series.points[-1].y)
    offsets = [0, *(sign * step for step in range(6, 90, 4) for sign in (-1, 1))]
    place = placer.first_free(series.key, [(x + 8, y + 4 + offset, "start") for offset in offsets])
    return svg.label(place[0], place[1], series.key, class_=f"key {marks.style(series.index)}") if place else Markup()


def _values(series: Series, frame: Frame, placer: Placer) -> Markup:
    """Return the values of the points, each above or below its point. A value without a free place is left out."""
    parts = []
    for point in series.points:
        x, y = frame.at(point.x, point.y)
        words = text.number(point.y)
        sides: list[tuple[float, float, Anchor]] = [(x, y - 8, "middle"), (x, y + 18, "middle")]
        sides += [(x, y - 14, "middle"), (x + 7, y - 7, "start"), (x - 7, y - 7, "end"), (x - 7, y + 16, "end")]
        if place := placer.first_free(words, sides):
            parts.append(svg.label(place[0], place[1], words, place[2], class_="value"))
    return Markup("").join(parts)
