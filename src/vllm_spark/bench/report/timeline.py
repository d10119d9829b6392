"""A panel of samples along the run: mean as a line, smallest and largest values as a band, cells as a strip above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import marks, scale, svg, text, thin
from vllm_spark.bench.report.frame import FONT, Frame, margin
from vllm_spark.bench.report.placing import Placer

TOP, BELOW, STRIP = 26.0, 42.0, 13.0
# Distance of two markers of a line, as a share of the width.
MARKERS = 0.16
# A strip with more cells has no tooltips, because they would be most of the file.
MAX_TITLES = 60


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
    top = TOP + STRIP * len(timeline.cells) + 4
    several = len(timeline.traces) > 1
    frame = Frame(x, y, max(margin(y), 40.0), top, size.width - (18 if several else 8), size.height - BELOW + top - TOP)
    placer = Placer((0, top - 6, size.width, frame.bottom), FONT)
    x_label = f"time since the start of the run, {x.unit}"
    parts = [_shade(timeline.cells[0], frame) if len(timeline.cells) == 1 else Markup()]
    parts += [frame.grid(), frame.names(x_label, timeline.y_label)]
    parts += [_strip(cells, frame, TOP + n * STRIP, several) for n, cells in enumerate(timeline.cells)]
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


def _strip(cells: Cells, frame: Frame, y: float, several: bool) -> Markup:
    """Return the cells of a run as blocks, with their number in the table where it fits."""
    parts = [svg.label(frame.left - 7, y + STRIP - 3, f"cells {cells.key}" if several else "cells", "end", "small")]
    outline, free = "", float("-inf")
    for number, (begin, end, name) in enumerate(cells.spans, 1):
        left, right, words = frame.across(begin), frame.across(end), str(number)
        block = f"M{left:.1f} {y:.1f}H{right:.1f}V{y + STRIP - 2:.1f}H{left:.1f}Z"
        if len(cells.spans) <= MAX_TITLES:
            title = svg.element("title", text.plain(f"{number}: {name}"))
            parts.append(svg.element("g", title, svg.element("path", d=block, class_="block")))
        else:
            outline += block
        half = svg.width(words, 9) / 2
        if right - left > 2 * half and (left + right) / 2 - half > free:
            parts.append(svg.label((left + right) / 2, y + STRIP - 4, words, "middle", "small"))
            free = (left + right) / 2 + half
    if outline:
        parts.insert(1, svg.element("path", d=outline, class_="block"))
    return Markup("").join(parts)


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
        title = f"{text.duration(bucket.t)}: {text.number(bucket.mean)} ({text.number(bucket.low)} – {text.number(bucket.high)})"
        made.append(
            svg.element("g", svg.element("title", title), marks.marker(*frame.at(bucket.t, bucket.mean), trace.index))
        )
    return made


def _key(trace: Trace, frame: Frame, placer: Placer) -> Markup:
    x, y = frame.at(trace.buckets[-1].t, trace.buckets[-1].mean)
    x = min(x + 6, frame.right + 5)
    place = placer.first_free(trace.key, [(x, y + 4 + step, "start") for step in (0, -8, 8, -16, 16, -24, 24, 32, -32)])
    return svg.label(place[0], place[1], trace.key, class_=f"key {marks.style(trace.index)}") if place else Markup()
