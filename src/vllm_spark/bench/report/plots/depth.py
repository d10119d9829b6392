"""Decode by depth."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell


def draw(material: Material) -> Drawn | None:
    """Return decode and prefill of a stream by the tokens of context before the prompt."""

    def depth(cell: Cell) -> float:
        return float(cell["depth"])

    views = [
        sweep.View(metric.title(), f"{metric}, tok/s", sweep.lines(material.runs, metric, depth, ["depth"]))
        for metric in ("decode", "prefill")
    ]
    return sweep.panels(views, material.runs, "depth, tokens (k = 1024)", scale.log2, scale.linear)


PLOT = Plot(
    id="depth",
    order=20,
    title="Decode and prefill by depth",
    caption="Tokens per second of a stream after its first chunk, and prompt tokens per second before it, by the "
    "context before the prompt. The axis is logarithmic; 0 is beside it.",
    draw=draw,
)
