"""Decode by depth."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot


def draw(material: Material) -> Drawn | None:
    """Return decode of a stream by the tokens of context before the prompt."""
    lines = sweep.lines(material.runs, "decode", lambda cell: float(cell["depth"]), ["depth"])
    views = [sweep.View("", "decode, tok/s", lines)]
    return sweep.panels(views, material.runs, "depth, tokens (k = 1024)", scale.log2, scale.linear)


PLOT = Plot(
    id="depth",
    order=20,
    title="Decode by depth",
    caption="Tokens per second of one stream by the context before the prompt. The axis is logarithmic; 0 is beside it.",
    draw=draw,
)
