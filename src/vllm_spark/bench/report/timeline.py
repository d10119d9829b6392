"""A panel of samples along the run: mean as a line, smallest and largest values as a band, cells as a strip above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import marks, scale, svg, text, thin
from vllm_spark.bench.report.frame import FONT, Frame, margin
from vllm_spark.bench.report.placing import Placer

TOP, BELOW, STRIP = 26.0, 42.0, 15.0
SMALL = 10.5
# Distance of two markers of a line, as a share of the width.
MARKERS = 0.16
# Strips with more cells have no tooltips, because they would be most of the file.
MAX_TITLES = 80
NARROWEST = 4.0


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of the svg, and the number of ticks of the time axis."""

    width: float
    height: float
    ticks: int


NARROW, WIDE = Size(360, 190, 6), Size(1120, 168, 14)


@dataclass(frozen=True, slots=True)
class Cells:
    """The strip of a run: begin, end and name of each cell, in seconds since the start of the run."""

    index: int
    key: str
    spans: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Thinned samples of a run. `alerts` are times with a reason, shown at the top of the panel."""

    index: int
    key: str
    buckets: tuple[thin.Bucket, ...]
    alerts: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a panel shows. `seconds` is the length of the longest run."""

    title: str
    y_label: str
    seconds: float
    traces: tuple[Trace, ...]
    cells: tuple[Cells, ...]


def draw(timeline: Timeline, size: Size) -> Markup:
    """Return the panel in a size."""
    x = scale.time(timeline.seconds, size.ticks)
    y = scale.linear(
        [v for trace in timeline.traces for bucket in trace.buckets for v in (bucket.low, bucket.high)], 4, zero=False
    )
    top = TOP + STRIP * len(timeline.cells) + 8
    several = len(timeline.traces) > 1
    frame = Frame(x, y, max(margin(y), 40.0), top, size.width - (18 if several else 8), size.height - BELOW + top - TOP)
    placer = Placer((0, top - 6, size.width, frame.bottom), FONT)
    x_label = f"time since the start of the run, {x.unit}"
    few = sum(len(cells.spans) for cells in timeline.cells) <= MAX_TITLES
    shaded, titled = few and len(timeline.cells) == 1, few and size is WIDE
    parts = [_shade(timeline.cells[0], frame) if shaded else Markup()]
    parts += [frame.grid(), frame.names(x_label, timeline.y_label)]
    parts += [_strip(cells, frame, TOP + n * STRIP, several, titled) for n, cells in enumerate(timeline.cells)]
    parts += [_trace(trace, frame) for trace in timeline.traces]
    if several:
        parts += [_key(trace, frame, placer) for trace in timeline.traces]
    name = f"{timeline.title}: {timeline.y_label} by {x_label}"
    class_ = "wide" if size is WIDE else "narrow"
    return svg.drawing(size.width, frame.bottom + BELOW, name, _spoken(timeline), *parts, class_=class_)


def _spoken(timeline: Timeline) -> str:
    return ". ".join(
        f"{trace.key} from {text.number(min(b.low for b in trace.buckets))} "
        f"to {text.number(max(b.high for b in trace.buckets))}"
        for trace in timeline.traces
    )


def _shade(cells: Cells, frame: Frame) -> Markup:
    """Return every second cell as a band behind the data, as one path."""
    spans = [(frame.across(begin), frame.across(end)) for begin, end, _ in cells.spans[1::2]]
    bands = "".join(f"M{left:.1f} {frame.top:.1f}H{right:.1f}V{frame.bottom:.1f}H{left:.1f}Z" for left, right in spans)
    return svg.element("path", d=bands, class_="shade") if bands else Markup()


def _strip(cells: Cells, frame: Frame, y: float, several: bool, titled: bool) -> Markup:
    """Return the cells of a run as blocks, with their number in the table where it fits."""
    parts = [svg.label(frame.left - 7, y + STRIP - 5, f"cells {cells.key}" if several else "cells", "end", "small")]
    blocks = [
        (frame.across(begin), frame.across(end), f"{n}: {name}") for n, (begin, end, name) in enumerate(cells.spans, 1)
    ]
    free = float("-inf")
    for left, right, name in blocks if titled else ():
        shape = svg.element("path", d=_block(left, right, y), class_="block")
        parts.append(svg.element("g", svg.element("title", text.plain(name)), shape))
    if not titled:
        parts.append(svg.element("path", d=_merged(blocks, y), class_="block"))
    for number, (left, right, _) in enumerate(blocks, 1):
        middle, half = (left + right) / 2, svg.width(str(number), SMALL) / 2
        if right - left > 2 * half and middle - half > free:
            parts.append(svg.label(middle, y + STRIP - 5, str(number), "middle", "small"))
            free = middle + half
    return Markup("").join(parts)


def _block(left: float, right: float, y: float) -> str:
    return f"M{left:.1f} {y:.1f}H{right:.1f}V{y + STRIP - 2:.1f}H{left:.1f}Z"


def _merged(blocks: Sequence[tuple[float, float, str]], y: float) -> str:
    """Return all blocks as one, with a line between two if they are wide enough to be seen."""
    whole = _block(blocks[0][0], blocks[-1][1], y)
    if blocks[-1][1] - blocks[0][0] < NARROWEST * len(blocks):
        return whole
    return whole + "".join(f"M{left:.0f} {y:.0f}v{STRIP - 2:.0f}" for left, _, _ in blocks[1:])


def _trace(trace: Trace, frame: Frame) -> Markup:
    style = marks.style(trace.index)
    parts = []
    for part in thin.unbroken(trace.buckets):
        upper = [frame.at(bucket.t, bucket.high) for bucket in part]
        lower = [frame.at(bucket.t, bucket.low) for bucket in reversed(part)]
        parts.append(svg.element("path", d=svg.path([*upper, *lower], close=True), class_=f"band {style}"))
        parts.append(
            svg.element("path", d=svg.path([frame.at(bucket.t, bucket.mean) for bucket in part]), class_=f"l {style}")
        )
    parts += _markers(trace, frame)
    for t, reason in trace.alerts:
        x = frame.across(t)
        title = svg.element("title", text.plain(f"{reason}, {text.duration(t)} after the start"))
        mark = svg.element("path", d=f"M{x - 4:.1f} {frame.top - 2:.1f}h8l-4 7Z", class_="alert")
        parts.append(svg.element("g", title, mark))
    return Markup("").join(parts)


def _markers(trace: Trace, frame: Frame) -> list[Markup]:
    """Return a marker with a tooltip at regular distances, so that lines differ without colour."""
    step = max(1, round(len(trace.buckets) * MARKERS))
    chosen: Sequence[thin.Bucket] = trace.buckets[step // 2 + trace.index % 3 * step // 3 :: step]
    made = []
    for bucket in chosen:
        extremes = f"{text.number(bucket.low)} to {text.number(bucket.high)}"
        title = f"{text.duration(bucket.t)}: {text.number(bucket.mean)} ({extremes})"
        made.append(
            svg.element("g", svg.element("title", title), marks.marker(*frame.at(bucket.t, bucket.mean), trace.index))
        )
    return made


def _key(trace: Trace, frame: Frame, placer: Placer) -> Markup:
    x, y = frame.at(trace.buckets[-1].t, trace.buckets[-1].mean)
    x = min(x + 6, frame.right + 5)
    place = placer.first_free(trace.key, [(x, y + 4 + step, "start") for step in (0, -8, 8, -16, 16, -24, 24, 32, -32)])
    return svg.label(place[0], place[1], trace.key, class_=f"key {marks.style(trace.index)}") if place else Markup()
