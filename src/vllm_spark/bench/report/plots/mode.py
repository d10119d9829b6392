"""Eager against compiled."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell

VIEWS = (("Decode", "decode", "tok/s"), ("Step", "step", "ms"), ("Prefill", "prefill", "prompt tok/s"))


def draw(material: Material) -> Drawn | None:
    """Return decode, step time and prefill by the length of the prompt, with a line per mode of the server."""

    def prompt(cell: Cell) -> float | None:
        return float(cell["prompt"]) if "mode" in cell["server"] else None

    views = [
        sweep.View(title, unit, sweep.lines(material.runs, metric, prompt, ["prompt"])) for title, metric, unit in VIEWS
    ]
    return sweep.panels(views, material.runs, "prompt, tokens (k = 1024)", scale.log2, scale.linear)


PLOT = Plot(
    id="mode",
    order=55,
    title="Eager against compiled",
    caption="A compiled server joins small kernels and starts a step with one CUDA graph; an eager one starts every "
    "kernel from Python. The step shows the difference first.",
    draw=draw,
)
