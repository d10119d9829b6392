"""The sweep of speculative tokens."""

from __future__ import annotations

from vllm_spark.bench.report import scale, sweep
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.node.bench.records import Cell

VIEWS = (("Decode", "decode", "tok/s"), ("Step", "step", "ms"), ("Tokens per step", "tokens_per_step", "tok"))


def draw(material: Material) -> Drawn | None:
    """Return decode, step time and tokens per step by the number of speculative tokens."""

    def tokens(cell: Cell) -> float | None:
        value = cell["server"].get("speculative_tokens")
        return float(value) if isinstance(value, int) else None

    views = [
        sweep.View(title, unit, sweep.lines(material.runs, metric, tokens, ["server"])) for title, metric, unit in VIEWS
    ]
    return sweep.panels(views, material.runs, "speculative tokens", scale.whole, scale.linear)


PLOT = Plot(
    id="speculation",
    order=50,
    title="Sweep of speculative tokens",
    caption="A step takes longer with each drafted token and yields more tokens. Decode is best where both balance.",
    draw=draw,
)
