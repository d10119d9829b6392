"""Time to first token by prompt length."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell

VIEWS = (("First chunk", "first_chunk"), ("First token", "first_token"), ("First token of the answer", "first_answer"))
# What divides a figure in ms.
UNITS = {"s": 1000.0, "ms": 1.0}
# Above this ratio of the largest to the smallest value a linear axis would flatten the small ones.
WIDE_RANGE = 12


def draw(material: Material) -> Drawn | None:
    """Return a panel per definition of the first token."""

    def context(cell: Cell) -> float:
        return float(cell["prompt"] + cell["depth"])

    def views(unit: str) -> list[sweep.View]:
        ignored = ["prompt", "depth", "output"]
        found = (sweep.lines(material.runs, metric, context, ignored, unit=UNITS[unit]) for _, metric in VIEWS)
        return [sweep.View(title, unit, lines) for (title, _), lines in zip(VIEWS, found, strict=True)]

    long = any(point.high >= 1 for view in views("s") for line in view.lines for point in line.points)
    shown = views("s" if long else "ms")
    return sweep.panels(shown, material.runs, "depth + prompt, tokens (k = 1024)", scale.log2, _times)


def _times(values: list[float]) -> scale.Axis:
    positive = [value for value in values if value > 0]
    if positive and max(positive) > WIDE_RANGE * min(positive):
        return scale.log10(positive)
    return scale.linear(values)


PLOT = Plot(
    id="first-token",
    order=30,
    title="Time to first token by prompt",
    caption="From sending the request to the first chunk with choices, to the first chunk with a token (reasoning "
    "counts), and to the first chunk with content of the answer. The length is the prompt with the depth before it.",
    draw=draw,
)
