"""What makes a series distinguishable without colour: its marker, its dashes and its letter."""

from __future__ import annotations

from markupsafe import Markup

from vllm_spark.bench.report import svg

# Unit paths around the origin. style.css has a colour and a pattern of dashes for each of s0 … s5.
SHAPES = (
    "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "M0 -4.6L4.4 3.6H-4.4Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 4.6L4.4 -3.6H-4.4Z",
    "M-4 -1.4H-1.4V-4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4Z",
)
COUNT = len(SHAPES)


def style(index: int) -> str:
    """Return the class of the series with this index."""
    return f"s{index % COUNT}"


def marker(x: float, y: float, index: int) -> Markup:
    """Return the marker of a series. The even ones are solid, the odd ones hollow."""
    return svg.element(
        "path",
        d=SHAPES[index % COUNT],
        transform=f"translate({x:.1f} {y:.1f})",
        class_=f"m {style(index)}" + (" hollow" if index % 2 else ""),
    )


def swatch(index: int) -> Markup:
    """Return a sample of a line for the legend."""
    return _sample(svg.element("path", d="M1 7H39", class_=f"l {style(index)}"), marker(20, 7, index))


def _sample(*parts: Markup) -> Markup:
    return svg.element("svg", *parts, viewBox="0 0 40 14", class_="swatch", aria_hidden="true")
