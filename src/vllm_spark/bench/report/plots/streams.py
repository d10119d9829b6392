"""Decode by streams."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell

VIEWS = (("Each stream", "decode"), ("All streams together", "total"))


def draw(material: Material) -> Drawn | None:
    """Return decode of a stream and of all streams together, by the number of streams."""

    def streams(cell: Cell) -> float:
        return float(cell["streams"])

    views = [
        sweep.View(title, f"{metric}, tok/s", sweep.lines(material.runs, metric, streams, ["streams"]))
        for title, metric in VIEWS
    ]
    return sweep.panels(views, material.runs, "streams", scale.log2, scale.linear)


PLOT = Plot(
    id="streams",
    order=10,
    title="Decode by streams",
    caption="Tokens per second after the first chunk, in the window in which all streams are active.",
    draw=draw,
)
