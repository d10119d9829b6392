"""A panel of samples along the run: mean as a line, smallest and largest values as a band, cells as a strip above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import marks, scale, strip, svg, text, thin
from vllm_spark.bench.report.frame import FONT, Frame, margin
from vllm_spark.bench.report.placing import Placer

TOP, BELOW = 26.0, 42.0
# Distance of two markers of a line, as a share of the width.
MARKERS = 0.16


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of the svg, and the number of ticks of the time axis."""

    width: float
    height: float
    ticks: int


NARROW, WIDE = Size(360, 190, 6), Size(1120, 168, 14)


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
    cells: tuple[strip.Cells, ...]


def draw(timeline: Timeline, size: Size) -> Markup:
    """Return the panel in a size."""
    x = scale.time(timeline.seconds, size.ticks)
    y = scale.linear(
        [v for trace in timeline.traces for bucket in trace.buckets for v in (bucket.low, bucket.high)], 4, zero=False
    )
    top = TOP + strip.HEIGHT * len(timeline.cells) + 8
    several = len(timeline.traces) > 1
    frame = Frame(x, y, max(margin(y), 40.0), top, size.width - (18 if several else 8), size.height - BELOW + top - TOP)
    placer = Placer((0, top - 6, size.width, frame.bottom), FONT)
    x_label = f"time since the start of the run, {x.unit}"
    parts = [strip.shade(timeline.cells, frame), frame.grid(), frame.names(x_label, timeline.y_label)]
    parts.append(strip.draw(timeline.cells, frame, TOP, tooltips=size is WIDE))
    parts += [_trace(trace, frame) for trace in timeline.traces]
    if several:
        parts += [_key(trace, frame, placer) for trace in timeline.traces]
        parts += [_alert_key(t, trace, frame, placer) for trace in timeline.traces for t, _ in trace.alerts]
    name = f"{timeline.title}: {timeline.y_label} by {x_label}"
    class_ = "wide" if size is WIDE else "narrow"
    return svg.drawing(size.width, frame.bottom + BELOW, name, _spoken(timeline), *parts, class_=class_)


def _spoken(timeline: Timeline) -> str:
    return ". ".join(
        f"{trace.key} from {text.number(min(b.low for b in trace.buckets))} "
        f"to {text.number(max(b.high for b in trace.buckets))}"
        for trace in timeline.traces
    )


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
