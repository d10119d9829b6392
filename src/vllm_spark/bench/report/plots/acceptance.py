"""Acceptance of drafted tokens by position."""

from __future__ import annotations

from statistics import median

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import scale, sweep, text
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.bench.report.panel import Point
from vllm_spark.bench.report.reading import is_number
from vllm_spark.node.bench.records import CellRecord

METRIC = "acceptance_by_position"


def draw(material: Material) -> Drawn | None:
    """Return the share of accepted tokens per drafted position: the median of the cells of a corpus."""
    lines = [line for index, run in enumerate(material.runs) for line in _lines(index, run)]
    views = [sweep.View("", "accepted, %", lines)]
    return sweep.panels(
        views, material.runs, "drafted position", scale.whole, lambda values: scale.linear([*values, 100.0])
    )


def _lines(index: int, run: Evidence) -> list[sweep.Line]:
    found: dict[sweep.Group, list[list[float]]] = {}
    measured = [(record["cell"], shares) for record in run.cells.values() if (shares := _shares(record))]
    # The sweep of speculative tokens has a plot of its own.
    plain = [(cell, shares) for cell, shares in measured if not cell["server"]]
    for cell, shares in plain or measured:
        group = tuple(sweep.DIMENSIONS[name](cell) for name in ("corpus", "server"))
        found.setdefault(group, []).append(shares)
    return [sweep.Line(index, group, _points(cells)) for group, cells in found.items()]


def _shares(record: CellRecord) -> list[float]:
    """Return the shares of a measured cell, or nothing."""
    known = record["figures"].get(METRIC) if record["state"] == "measured" else None
    shares = known["median"] if known else None
    return shares if isinstance(shares, list) and all(map(is_number, shares)) else []


def _points(cells: list[list[float]]) -> tuple[Point, ...]:
    points = []
    for position in range(max(map(len, cells))):
        shares = [100 * shares[position] for shares in cells if position < len(shares)]
        title = f"position {position + 1}: {text.number(median(shares))} %, median of {len(shares)} cells"
        points.append(Point(position + 1, median(shares), min(shares), max(shares), title))
    return tuple(points)


PLOT = Plot(
    id="acceptance",
    order=40,
    title="Acceptance by position",
    caption="Share of the drafted tokens that the model accepted, by their position in the draft. Each point is the "
    "median of the cells of a corpus, its bar the smallest and the largest of them.",
    draw=draw,
)
