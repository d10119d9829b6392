"""Time to first token by prompt length."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell

VIEWS = (("First chunk", "first_chunk"), ("First token", "first_token"), ("First token of the answer", "first_answer"))
MS = 1000.0
# Above this ratio of the largest to the smallest value a linear axis would flatten the small ones.
WIDE_RANGE = 12


def draw(material: Material) -> Drawn | None:
    """Return a panel per definition of the first token."""

    def context(cell: Cell) -> float:
        return float(cell["prompt"] + cell["depth"])

    views = [
        sweep.View(title, "s", sweep.lines(material.runs, metric, context, ["prompt", "depth", "output"], unit=MS))
        for title, metric in VIEWS
    ]
    return sweep.panels(views, material.runs, "depth + prompt, tokens (k = 1024)", scale.log2, _seconds)


def _seconds(values: list[float]) -> scale.Axis:
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
