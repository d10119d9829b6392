"""The frame of a drawing with two axes: grid, ticks and labels of the axes."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from vllm_spark.bench.report import svg
from vllm_spark.bench.report.scale import CUT, Axis

FONT = 12.0
# The break at the foot of an axis that does not begin at zero.
ZIGZAG = "v3l-4 2l8 3l-4 2v4"


@dataclass(frozen=True, slots=True)
class Frame:
    """The area of the data, and the axes around it. Lengths are in units of the viewBox."""

    x: Axis
    y: Axis
    left: float
    top: float
    right: float
    bottom: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point."""
        return self.across(x), self.bottom - self.y.place(y) * (self.bottom - self.top)

    def across(self, x: float) -> float:
        """Return the horizontal coordinate of a value."""
        return self.left + self.x.place(x) * (self.right - self.left)

    def grid(self, *, times: bool = True) -> Markup:
        """Return the horizontal lines with their ticks, and the horizontal axis, whose ticks have text with `times`."""
        parts = []
        for tick in self.y.ticks:
            _, y = self.at(0, tick.value)
            parts.append(svg.element("path", d=f"M{self.left:.1f} {y:.1f}H{self.right:.1f}", class_="grid"))
            parts.append(svg.label(self.left - 7, y + 4, tick.text, "end"))
        parts.append(svg.element("path", d=f"M{self.left:.1f} {self.bottom:.1f}H{self.right:.1f}", class_="axis"))
        if self.y.mark == CUT:
            parts.append(svg.element("path", d=f"M{self.left:.1f} {self.bottom - 14:.1f}{ZIGZAG}", class_="axis cut"))
        free = float("-inf")
        for tick in self.x.ticks:
            x, half = self.across(tick.value), svg.width(tick.text, FONT) / 2
            parts.append(svg.element("path", d=f"M{x:.1f} {self.bottom:.1f}v4", class_="axis"))
            if times and x - half > free:
                parts.append(svg.label(x, self.bottom + 17, tick.text, "middle"))
                free = x + half + 3
        return Markup("").join(parts)

    def names(self, x_label: str, y_label: str) -> Markup:
        """Return the labels of the axes: of the vertical one above it, of the horizontal one below its right end."""
        return Markup("").join(
            (
                svg.label(0, FONT, f"{y_label}{self.y.mark}", class_="name y"),
                svg.label(self.right, self.bottom + 35, x_label, "end", class_="name x"),
            )
        )


def margin(axis: Axis) -> float:
    """Return the width that the ticks of a vertical axis need."""
    return max(svg.width(tick.text, FONT) for tick in axis.ticks) + 9
