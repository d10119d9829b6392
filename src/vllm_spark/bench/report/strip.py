"""The cells of the runs along the time: strips of blocks above the rows, and bands behind their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import svg
from vllm_spark.bench.report.frame import Frame

HEIGHT, FONT = 15.0, 10.5
# More cells have no numbers, because these would be most of the file.
MAX_NUMBERED = 80
# Blocks that are narrower, in units of the viewBox, have no line between them.
NARROWEST = 8.0


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end of a cell in seconds since the start of its run, and its number in the table."""

    begin: float
    end: float
    number: int


@dataclass(frozen=True, slots=True)
class Cells:
    """The strip of a run. `key` is its letter, or empty for a single run."""

    key: str
    spans: tuple[Span, ...]


def _few(strips: Sequence[Cells]) -> bool:
    return sum(len(cells.spans) for cells in strips) <= MAX_NUMBERED


def shade(strips: Sequence[Cells], frame: Frame) -> Markup:
    """Return every second cell of a single run as a band behind the data, as one path."""
    if len(strips) != 1 or not _few(strips):
        return Markup()
    bands = [_block(frame, span.begin, span.end, frame.top, frame.bottom) for span in strips[0].spans[1::2]]
    return svg.element("path", d="".join(bands), class_="shade") if bands else Markup()


def draw(strips: Sequence[Cells], frame: Frame, top: float) -> Markup:
    """Return a strip per run, the first one at `top`."""
    parts = []
    for n, cells in enumerate(strips):
        y = top + n * HEIGHT
        parts.append(svg.label(frame.left - 7, y + HEIGHT - 5, f"cells {cells.key}".strip(), "end", "small"))
        parts.append(svg.element("path", d=_blocks(cells.spans, frame, y, y + HEIGHT - 2), class_="block"))
        parts.append(_numbers(cells, frame, y) if _few(strips) else Markup())
    return Markup("").join(parts)


def _block(frame: Frame, begin: float, end: float, top: float, bottom: float) -> str:
    left, right = frame.across(begin), frame.across(end)
    return f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z"


def _blocks(spans: Sequence[Span], frame: Frame, top: float, bottom: float) -> str:
    """Return all blocks as one, with a line between two of them if they are wide enough."""
    whole = _block(frame, spans[0].begin, spans[-1].end, top, bottom)
    if frame.across(spans[-1].end) - frame.across(spans[0].begin) < NARROWEST * len(spans):
        return whole
    return whole + "".join(f"M{frame.across(span.begin):.1f} {top:.1f}V{bottom:.1f}" for span in spans[1:])


def _numbers(cells: Cells, frame: Frame, y: float) -> Markup:
    """Return the numbers that fit into their block."""
    labels, free = [], float("-inf")
    for span in cells.spans:
        left, right, words = frame.across(span.begin), frame.across(span.end), str(span.number)
        middle, half = (left + right) / 2, svg.width(words, FONT) / 2
        if right - left > 2 * half and middle - half > free:
            labels.append(svg.label(middle, y + HEIGHT - 5, words, "middle", "small"))
            free = middle + half
    return Markup("").join(labels)
