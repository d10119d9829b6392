"""SVG elements as escaped markup, and what makes a series distinguishable without colour: its marker and its dashes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from markupsafe import Markup, escape

from vllm_spark.bench.report import text

# Width of a character as a share of the font size. Wide fonts (DejaVu Sans, Verdana) need this much.
CHARACTER = 0.62


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Return an element. `_` in the name of an attribute stands for `-`; a trailing one is dropped. None is left out.

    A child that is not Markup is escaped."""
    words = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)
    opened = Markup("<{}{}").format(tag, Markup(words))  # noqa: S704  each value is escaped above
    return opened + (Markup(">{}</{}>").format(inner, tag) if inner else Markup("/>"))


def _value(value: object) -> str:
    return f"{round(value, 1):g}" if isinstance(value, float) else str(value)


def path(points: Iterable[tuple[float, float]], *, close: bool = False) -> str:
    """Return the `d` of a polyline: the first point, then relative steps, which are half as long in bytes."""
    tenths = [(round(10 * x), round(10 * y)) for x, y in points]
    steps = " ".join(f"{_tenth(x1 - x0)} {_tenth(y1 - y0)}" for (x0, y0), (x1, y1) in pairwise(tenths))
    line = f"l{steps}" if steps else ""
    return f"M{_tenth(tenths[0][0])} {_tenth(tenths[0][1])}{line}" + ("Z" if close else "")


def _tenth(tenths: int) -> str:
    return f"{tenths / 10:g}".replace("0.", ".", 1) if abs(tenths) < 10 else f"{tenths / 10:g}"  # noqa: PLR2004


def label(x: float, y: float, words: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """Return a text with its baseline at y."""
    return element(
        "text",
        text.plain(words),
        x=float(x),
        y=float(y),
        text_anchor=None if anchor == "start" else anchor,
        class_=class_,
    )


def width(words: str, size: float) -> float:
    """Return an upper estimate of the width of a text."""
    return len(words) * CHARACTER * size


def drawing(width_: float, height: float, name: str, description: str, *children: str, class_: str = "") -> Markup:
    """Return an svg with a name and a description for screen readers."""
    return element(
        "svg",
        element("desc", text.plain(description)),
        *children,
        viewBox=f"0 0 {width_:g} {height:g}",
        role="img",
        aria_label=text.plain(name),
        class_=class_ or None,
    )


# Unit paths around the origin. style.css has a colour and a pattern of dashes for each of s0 … s5.
SHAPES = (
    "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "M0 -4.6L4.4 3.6H-4.4Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 4.6L4.4 -3.6H-4.4Z",
    "M-4 -1.4H-1.4V-4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4Z",
)
SHAPE_COUNT = len(SHAPES)


def style(index: int) -> str:
    """Return the class of the series with this index."""
    return f"s{index % SHAPE_COUNT}"


def marker(x: float, y: float, index: int) -> Markup:
    """Return the marker of a series. The even ones are solid, the odd ones hollow."""
    return element(
        "path",
        d=SHAPES[index % SHAPE_COUNT],
        transform=f"translate({x:.1f} {y:.1f})",
        class_=f"m {style(index)}" + (" hollow" if index % 2 else ""),
    )


def swatch(index: int) -> Markup:
    """Return a sample of a line for the legend."""
    return _sample(element("path", d="M1 7H39", class_=f"l {style(index)}"), marker(20, 7, index))


def _sample(*parts: Markup) -> Markup:
    return element("svg", *parts, viewBox="0 0 40 14", class_="swatch", aria_hidden="true")
