"""Decode by streams."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell


def draw(material: Material) -> Drawn | None:
    """Return decode of a stream and of all streams together, by the number of streams."""

    def streams(cell: Cell) -> float:
        return float(cell["streams"])

    def together(cell: Cell) -> str:
        return "total" if cell["streams"] > 1 else "decode"

    each = sweep.lines(material.runs, "decode", streams, ["streams"])
    total = sweep.lines(material.runs, together, streams, ["streams"])
    views = [
        sweep.View("Each stream", "decode, tok/s", each),
        sweep.View("All streams together", "total, tok/s", total),
    ]
    return sweep.panels(views, material.runs, "streams", scale.log2, scale.linear)


PLOT = Plot(
    id="streams",
    order=10,
    title="Decode by streams",
    caption="Tokens per second after the first chunk, in the window in which all streams are active.",
    draw=draw,
)
