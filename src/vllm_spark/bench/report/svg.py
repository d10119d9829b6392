"""SVG elements as escaped markup."""

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
