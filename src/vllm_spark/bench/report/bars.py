"""Horizontal bars with a name above each and its value beside it: waterfalls and comparisons by term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import marks, scale, svg, text
from vllm_spark.bench.report.frame import FONT

WIDTH, TOP = 360.0, 8.0
LINE, BAR, GAP = 15.0, 11.0, 6.0
MAX_NAME = 36


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from `start` to `end`. `index` selects colour and pattern; `key` is the letter of its run, or empty."""

    index: int
    key: str
    start: float
    end: float
    value: str
    outline: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A name and its bars."""

    name: str
    bars: tuple[Bar, ...]
    strong: bool = False


def draw(rows: Sequence[Row], name: str, x_label: str) -> Markup:
    """Return the rows above a common axis that begins at zero."""
    axis = scale.linear([0.0, *(bar.end for row in rows for bar in row.bars)])
    keyed = any(bar.key for row in rows for bar in row.bars)
    left = 16.0 if keyed else 1.0
    right = WIDTH - max(svg.width(bar.value, FONT) for row in rows for bar in row.bars) - 10

    def across(value: float) -> float:
        return left + axis.place(value) * (right - left)

    parts, y = [], TOP
    for row in rows:
        y += LINE
        parts.append(svg.label(0, y - 4, _shortened(row.name), class_="strong" if row.strong else None))
        for bar in row.bars:
            parts.append(_bar(bar, across(bar.start), across(bar.end), y))
            y += BAR + 3
        y += GAP
    ticks = [_tick(across(tick.value), tick.text, y) for tick in axis.ticks]
    label = svg.label(right, y + 35, x_label, "end", class_="name x")
    spoken = ". ".join(
        f"{row.name}: " + ", ".join(f"{bar.key} {bar.value}".strip() for bar in row.bars) for row in rows
    )
    lines = svg.element("path", d=f"M{left:.1f} {y:.1f}H{right:.1f}", class_="axis")
    return svg.drawing(WIDTH, y + 42, f"{name}: {x_label}", spoken, *ticks, lines, label, *parts)


def _shortened(name: str) -> str:
    words = text.plain(name)
    return words if len(words) <= MAX_NAME else f"{words[: MAX_NAME - 1]}…"


def _bar(bar: Bar, start: float, end: float, y: float) -> Markup:
    middle = y + BAR - 2
    rectangle = svg.element(
        "rect",
        x=start,
        y=y,
        width=max(1.5, end - start),
        height=BAR,
        class_=f"b {marks.style(bar.index)}" + (" outline" if bar.outline else ""),
    )
    key = svg.label(0, middle, bar.key, class_=f"key {marks.style(bar.index)}") if bar.key else Markup()
    value = svg.label(max(end, start + 1.5) + 6, middle, bar.value, class_="value")
    return svg.element("g", rectangle, key, value)


def _tick(x: float, words: str, y: float) -> Markup:
    line = svg.element("path", d=f"M{x:.1f} {TOP:.1f}V{y + 4:.1f}", class_="grid")
    return Markup("").join((line, svg.label(x, y + 17, words, "middle" if x > FONT else "start")))
