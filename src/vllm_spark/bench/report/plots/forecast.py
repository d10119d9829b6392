"""Measured beside forecast, by term."""

from __future__ import annotations

from itertools import accumulate

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import bars, marks, sweep, text
from vllm_spark.bench.report.material import Drawn, Forecast, Material, Plot
from vllm_spark.bench.report.reading import figure, letter

FORECAST = marks.COUNT - 1


def draw(material: Material) -> Drawn | None:
    """Return the terms of the forecast as a waterfall, and below them the step that each run measured."""
    forecast = material.forecast
    if not forecast or not forecast.terms:
        return None
    total = sum(forecast.terms.values())
    rows = [
        _term(forecast, term, end)
        for term, end in zip(forecast.terms, accumulate(forecast.terms.values()), strict=True)
    ]
    rows.append(bars.Row("forecast step", (_forecast(0, total),), strong=True))
    steps = [
        (index, step)
        for index, run in enumerate(material.runs)
        if (step := _measured_step(run, forecast.cell)) is not None
    ]
    several = len(material.runs) > 1
    for index, step in steps:
        difference = f"{100 * (step / total - 1):+.0f} %" if total else ""
        name = f"measured step{f' of run {letter(index)}' if several else ''}, {difference}"
        rows.append(bars.Row(name, (_measured(index, 0, step),), strong=True))
    note = "" if steps else "No run measured the step of this cell."
    svg = bars.draw(rows, "Measured beside forecast", "time per step, ms")
    return Drawn(
        ((text.plain(forecast.cell), svg),), sweep.run_legend(material.runs, {n for n, _ in steps}, marks.block), note
    )


def _term(forecast: Forecast, term: str, end: float) -> bars.Row:
    size = forecast.terms[term]
    found = [_forecast(end - size, end)]
    if (measured := forecast.measured.get(term)) is not None:
        found.append(_measured(0, end - size, end - size + measured))
    return bars.Row(term.replace("_", " "), tuple(found))


def _forecast(start: float, end: float) -> bars.Bar:
    return bars.Bar(FORECAST, "", start, end, f"{text.number(end - start)} ms", outline=True)


def _measured(index: int, start: float, end: float) -> bars.Bar:
    return bars.Bar(index, "", start, end, f"{text.number(end - start)} ms")


def _measured_step(run: Evidence, cell: str) -> float | None:
    for record in run.cells.values():
        if record["cell"]["id"] == cell and (step := figure(record, "step")):
            return float(step["median"])
    return None


PLOT = Plot(
    id="forecast",
    order=70,
    title="Measured beside forecast",
    caption="The forecast adds up terms: each begins where the one above it ends. Below is the step "
    "that was measured. Outlined bars are the forecast, solid ones are measured.",
    draw=draw,
)
