"""Samples along the run: rows over one axis of time, mean as a line, extremes as a band, the cells as strips above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import marks, scale, strip, svg, text, thin
from vllm_spark.bench.report.frame import FONT, Frame, margin
from vllm_spark.bench.report.placing import Placer

# Heights: of the data of a row, and of the axis below the last row.
ROW, BELOW = 60.0, 42.0
# Runs whose range has a place above a narrow row.
NARROW_RANGES = 2


@dataclass(frozen=True, slots=True)
class Size:
    """Width of the svg, height of the text above a row, and the number of ticks of the time axis."""

    width: float
    head: float
    ticks: int


# A narrow row has two lines of text above it.
NARROW, WIDE = Size(360, 40.0, 6), Size(1120, 28.0, 14)


@dataclass(frozen=True, slots=True)
class Trace:
    """Thinned samples of a run. `alerts` are times, shown at the top of the row."""

    index: int
    key: str
    buckets: tuple[thin.Bucket, ...]
    alerts: tuple[float, ...] = ()

    @property
    def range(self) -> str:
        """Return the smallest and the largest sample as text, with the letter of the run."""
        low, high = (text.number(end) for end in (min(b.low for b in self.buckets), max(b.high for b in self.buckets)))
        return f"{self.key} {low}" if low == high else f"{self.key} {low} to {high}"


@dataclass(frozen=True, slots=True)
class Row:
    """A field of the samples: its name, its unit, and a trace per run that has it."""

    title: str
    unit: str
    traces: tuple[Trace, ...]


def draw(name: str, rows: Sequence[Row], cells: Sequence[strip.Cells], seconds: float, size: Size) -> Markup:
    """Return the rows over one axis of time, in a size. `seconds` is the length of the longest run."""
    x = scale.time(seconds, size.ticks)
    axes = [_axis(row) for row in rows]
    left, right = max(40.0, *map(margin, axes)), size.width - (18 if any(len(row.traces) > 1 for row in rows) else 8)
    top = strip.HEIGHT * len(cells) + (4 if cells else 0)
    bottoms = [top + n * (ROW + size.head) for n in range(1, len(rows) + 1)]
    frames = [Frame(x, y, left, bottom - ROW, right, bottom) for y, bottom in zip(axes, bottoms, strict=True)]
    height = frames[-1].bottom + BELOW
    parts = [strip.draw(cells, frames[0], 0.0)]
    for row, frame in zip(rows, frames, strict=True):
        parts += [strip.shade(cells, frame), frame.grid(times=frame is frames[-1]), *_head(row, frame, size)]
        parts += _traces(row, frame)
    x_label = f"time since the start of the run, {x.unit}"
    parts.append(svg.label(right, height - 7, x_label, "end", class_="name x"))
    spoken = ". ".join(f"{row.title}, {row.unit}: {', '.join(trace.range for trace in row.traces)}" for row in rows)
    class_ = "wide" if size is WIDE else "narrow"
    return svg.drawing(size.width, height, f"{name} by {x_label}", spoken, *parts, class_=class_)


def both(name: str, rows: Sequence[Sequence[Row]], cells: Sequence[strip.Cells], seconds: float) -> Markup:
    """Return the wide and the narrow drawing of the same rows, which are thinned for each."""
    sizes = zip(rows, (WIDE, NARROW), strict=True)
    return Markup("").join(draw(name, thinned, cells, seconds, size) for thinned, size in sizes)


def _axis(row: Row) -> scale.Axis:
    return scale.linear([v for t in row.traces for b in t.buckets for v in (b.low, b.high)], 3, zero=False)


def _head(row: Row, frame: Frame, size: Size) -> list[Markup]:
    """Return the name of a row, and what its samples reach: readable without a mouse."""
    name, ranges = f"{row.title}, {row.unit}{frame.y.mark}", ", ".join(trace.range.strip() for trace in row.traces)
    if size is WIDE:
        place = (svg.width(name, FONT) + 16, frame.top - 8)
    else:
        place = (frame.left, frame.top - 7)
        ranges = ranges if len(row.traces) <= NARROW_RANGES else f"{len(row.traces)} runs"
    return [
        svg.label(0, place[1] - (0 if size is WIDE else 14), name, class_="name y"),
        svg.label(*place, ranges),
    ]


def _traces(row: Row, frame: Frame) -> list[Markup]:
    parts = [part for trace in row.traces for part in _trace(trace, frame)]
    if len(row.traces) > 1:
        placer = Placer((0, frame.top - 6, frame.right + 18, frame.bottom + 4), FONT)
        parts += [_key(trace, frame, placer) for trace in row.traces]
        parts += [_alert_key(t, trace, frame, placer) for trace in row.traces for t in trace.alerts]
    return parts


def _trace(trace: Trace, frame: Frame) -> list[Markup]:
    style = marks.style(trace.index)
    parts = []
    for part in thin.unbroken(trace.buckets):
        upper = [frame.at(bucket.t, bucket.high) for bucket in part]
        lower = [frame.at(bucket.t, bucket.low) for bucket in reversed(part)]
        parts.append(svg.element("path", d=svg.path([*upper, *lower], close=True), class_=f"band {style}"))
        means = [frame.at(bucket.t, bucket.mean) for bucket in part]
        parts.append(svg.element("path", d=svg.path(means), class_=f"l {style}"))
    for t in trace.alerts:
        x = frame.across(t)
        parts.append(svg.element("path", d=f"M{x - 4:.1f} {frame.top - 2:.1f}h8l-4 7Z", class_="alert"))
    return parts


def _alert_key(t: float, trace: Trace, frame: Frame, placer: Placer) -> Markup:
    """Return the letter of a run beside an alert, on the side that has room."""
    x, y = frame.across(t), frame.top + 6
    place = placer.first_free(trace.key, [(x + 6, y, "start"), (x - 6, y, "end")])
    return svg.label(place[0], place[1], trace.key, place[2], "key") if place else Markup()


def _key(trace: Trace, frame: Frame, placer: Placer) -> Markup:
    x, y = frame.at(trace.buckets[-1].t, trace.buckets[-1].mean)
    x = min(x + 6, frame.right + 5)
    place = placer.first_free(trace.key, [(x, y + 4 + step, "start") for step in (0, -8, 8, -16, 16, -24, 24, 32, -32)])
    return svg.label(place[0], place[1], trace.key, class_=f"key {marks.style(trace.index)}") if place else Markup()
