"""The waterfall of a start."""

from __future__ import annotations

from itertools import accumulate

from markupsafe import Markup

from vllm_spark.bench.report import bars, marks, sweep, text
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.bench.report.reading import letter
from vllm_spark.node.bench.records import CellRecord

Starts = list[tuple[int, CellRecord]]


def draw(material: Material) -> Drawn | None:
    """Return a waterfall per kind of start (cold, warm), with the runs under each other in each phase."""
    kinds: dict[str, Starts] = {}
    for index, run in enumerate(material.runs):
        for record in run.cells.values():
            if record["phases"] and record["state"] == "measured":
                kinds.setdefault(str(record["cell"]["server"].get("start", record["cell"]["id"])), []).append(
                    (index, record)
                )
    if not kinds:
        return None
    several = len(material.runs) > 1
    panels = tuple((f"{text.plain(kind)} start", _waterfall(kind, starts, several)) for kind, starts in kinds.items())
    return Drawn(
        panels,
        sweep.run_legend(material.runs, {index for starts in kinds.values() for index, _ in starts}, marks.block),
    )


def _waterfall(kind: str, starts: Starts, several: bool) -> Markup:
    rows: dict[str, list[bars.Bar]] = {}
    for index, record in starts:
        key = letter(index) if several else ""
        for (phase, seconds), end in zip(record["phases"].items(), accumulate(record["phases"].values()), strict=True):
            bar = bars.Bar(index, key, end - seconds, end, f"{text.number(seconds)} s")
            rows.setdefault(phase, []).append(bar)
        total = sum(record["phases"].values())
        bar = bars.Bar(index, key, 0, total, f"{text.number(total)} s", outline=True)
        rows.setdefault("until the first token", []).append(bar)
    total_row = rows.pop("until the first token")
    made = [bars.Row(phase.replace("_", " "), tuple(found)) for phase, found in rows.items()]
    made.append(bars.Row("until the first token", tuple(total_row), strong=True))
    return bars.draw(made, f"{kind} start", "time since the start, s")


PLOT = Plot(
    id="start",
    order=60,
    title="A start by phase",
    caption="Each phase begins where the one above it ends. The last row is the whole start.",
    draw=draw,
)
