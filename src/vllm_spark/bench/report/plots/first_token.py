"""Time to first token by prompt, and by depth."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep, table
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell

VIEWS = (("First chunk", "first_chunk"), ("First token", "first_token"), ("First token of the answer", "first_answer"))
# What divides a figure in ms.
UNITS = {"s": 1000.0, "ms": 1.0}
# Above this ratio of the largest to the smallest value a linear axis would flatten the small ones.
WIDE_RANGE = 12


def draw(material: Material) -> Drawn | None:
    """Return a panel per definition of the first token that differs. A line joins cells that only differ in the prompt,
    or only in the depth before it: the same number of tokens takes another time as a prompt than as depth."""

    def context(cell: Cell) -> float:
        return float(cell["prompt"] + cell["depth"])

    shown = {metric for metric, _, _ in table.columns(material.runs).shown}

    def view(title: str, metric: str, unit: str) -> sweep.View:
        sweeps = (sweep.lines(material.runs, metric, context, [axis], unit=UNITS[unit]) for axis in ("prompt", "depth"))
        return sweep.View(title, unit, [line for lines in sweeps for line in lines])

    def views(unit: str) -> list[sweep.View]:
        return [view(title, metric, unit) for title, metric in VIEWS if metric in shown]

    long = any(point.high >= 1 for each in views("s") for line in each.lines for point in line.points)
    return sweep.panels(
        views("s" if long else "ms"), material.runs, "depth + prompt, tokens (k = 1024)", scale.log2, _times
    )


def _times(values: list[float]) -> scale.Axis:
    positive = [value for value in values if value > 0]
    if positive and max(positive) > WIDE_RANGE * min(positive):
        return scale.log10(positive)
    return scale.linear(values)


PLOT = Plot(
    id="first-token",
    order=30,
    title="Time to first token",
    caption="From sending the request to the first token; reasoning counts. A line joins cells that differ in the "
    "prompt alone, or in the depth before it alone. Where the first chunk or the first token of the answer come at "
    "another time, they have a panel of their own.",
    draw=draw,
)
