"""A panel: lines over one axis, with what is behind each point. It is the only drawing of the report.

Few points have markers, bars of their spread and tooltips. Samples along the time are a line of means in a band of
their extremes. The legend beside the panels names the lines, so no label stands inside of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median

from markupsafe import Markup

from vllm_spark.bench.report import svg, text
from vllm_spark.bench.report.scale import CUT, Axis

FONT = 12.0
WIDTH, HEIGHT = 360.0, 206.0
TOP, RIGHT, BELOW = 28.0, 14.0, 42.0
# The break at the foot of an axis that does not begin at zero.
ZIGZAG = "v3l-4 2l8 3l-4 2v4"


@dataclass(frozen=True, slots=True)
class Point:
    """A point, the smallest and the largest value behind it, and the text of its tooltip."""

    x: float
    y: float
    low: float
    high: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of points. `index` selects marker, dashes and colour; `name` is what a screen reader says."""

    index: int
    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel shows. Both labels name a unit. With `along` the points are samples along the time, `alerts` are
    times with a triangle, and `shaded` the begin and the end of parts of the time."""

    title: str
    x_label: str
    y_label: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    along: bool = False
    alerts: tuple[float, ...] = ()
    shaded: tuple[tuple[float, float], ...] = ()


def draw(panel: Panel) -> Markup:
    """Return the panel as an svg."""
    frame = _Frame(panel.x, panel.y)
    parts = [_shade(panel, frame), *frame.grid(), *frame.names(panel.x_label, panel.y_label)]
    for series in panel.series:
        parts += _samples(series, frame) if panel.along else _points(series, frame)
    for t in panel.alerts:
        parts.append(svg.element("path", d=f"M{frame.across(t) - 4:.1f} {TOP - 2:.1f}h8l-4 7Z", class_="alert"))
    return svg.drawing(WIDTH, HEIGHT, f"{panel.title}: {panel.y_label} by {panel.x_label}", _spoken(panel), *parts)


class _Frame:
    """The area of the data and the axes around it."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self.x, self.y = x, y
        self.left = max(svg.width(tick.text, FONT) for tick in y.ticks) + 9
        self.right, self.bottom = WIDTH - RIGHT, HEIGHT - BELOW

    def across(self, x: float) -> float:
        return self.left + self.x.place(x) * (self.right - self.left)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.across(x), self.bottom - self.y.place(y) * (self.bottom - TOP)

    def grid(self) -> Iterator[Markup]:
        """Yield the horizontal lines and both axes with their ticks; a tick without room has no text."""
        for tick in self.y.ticks:
            _, y = self.at(0, tick.value)
            yield svg.element("path", d=f"M{self.left:.1f} {y:.1f}H{self.right:.1f}", class_="grid")
            yield svg.label(self.left - 7, y + 4, tick.text, "end")
        yield svg.element("path", d=f"M{self.left:.1f} {self.bottom:.1f}H{self.right:.1f}", class_="axis")
        if self.y.mark == CUT:
            yield svg.element("path", d=f"M{self.left:.1f} {self.bottom - 14:.1f}{ZIGZAG}", class_="axis cut")
        free = float("-inf")
        for tick in self.x.ticks:
            x, half = self.across(tick.value), svg.width(tick.text, FONT) / 2
            yield svg.element("path", d=f"M{x:.1f} {self.bottom:.1f}v4", class_="axis")
            if free < x - half and x + half <= WIDTH:
                yield svg.label(x, self.bottom + 17, tick.text, "middle")
                free = x + half + 3

    def names(self, x_label: str, y_label: str) -> Iterator[Markup]:
        """Yield the label of the vertical axis above it, and that of the horizontal one below its right end."""
        yield svg.label(0, FONT, f"{y_label}{self.y.mark}", class_="name y")
        yield svg.label(self.right, self.bottom + 35, x_label, "end", class_="name x")


def _shade(panel: Panel, frame: _Frame) -> Markup:
    ends = [(frame.across(begin), frame.across(end)) for begin, end in panel.shaded]
    bands = "".join(f"M{left:.1f} {TOP:.1f}H{right:.1f}V{frame.bottom:.1f}H{left:.1f}Z" for left, right in ends)
    return svg.element("path", d=bands, class_="shade") if bands else Markup()


def _points(series: Series, frame: _Frame) -> Iterator[Markup]:
    style, places = svg.style(series.index), [frame.at(point.x, point.y) for point in series.points]
    yield svg.element("path", d=svg.path(places), class_=f"l {style}")
    for point, (x, y) in zip(series.points, places, strict=True):
        low, high = frame.at(point.x, point.low)[1], frame.at(point.x, point.high)[1]
        bar = svg.element("path", d=f"M{x:.1f} {low:.1f}V{high:.1f}", class_=f"w {style}")
        title, hit = (
            svg.element("title", text.plain(point.title)),
            svg.element("circle", cx=x, cy=y, r=11, class_="hit"),
        )
        yield svg.element("g", title, bar if low - high > 1 else "", svg.marker(x, y, series.index), hit)


def _samples(series: Series, frame: _Frame) -> Iterator[Markup]:
    style = svg.style(series.index)
    for part in unbroken(series.points):
        upper = [frame.at(point.x, point.high) for point in part]
        lower = [frame.at(point.x, point.low) for point in reversed(part)]
        yield svg.element("path", d=svg.path([*upper, *lower], close=True), class_=f"band {style}")
        yield svg.element("path", d=svg.path(frame.at(point.x, point.y) for point in part), class_=f"l {style}")


def _spoken(panel: Panel) -> str:
    return ". ".join(f"{series.name or 'values'}: {_read(panel, series)}" for series in panel.series)


def _read(panel: Panel, series: Series) -> str:
    if panel.along:
        return span(series)
    return ", ".join(f"{text.length(point.x)} → {text.number(point.y)}" for point in series.points)


def span(series: Series) -> str:
    """Return the smallest and the largest value of a line: `7.00 to 7.60`."""
    ends = [min(point.low for point in series.points), max(point.high for point in series.points)]
    return " to ".join(dict.fromkeys(map(text.number, ends)))


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
