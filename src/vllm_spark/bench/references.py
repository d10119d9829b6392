"""What a run is judged against beside earlier runs: field reports, the forecast, expected figures and evidence of its
recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from vllm_spark.bench import recipe_evidence, reported
from vllm_spark.bench.compare import TOO_NOISY, Row, compare, judge, worthless
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.core.units import GB, GIB
from vllm_spark.node.bench.leading import FIRST, leading_metrics
from vllm_spark.node.bench.records import UNITS, Cell, CellRecord
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

# Operators with the same configuration differ by 8 %: 35.0, 36.9, 38 to 40 and 40.85 tok/s of the 26B in FP8, 6.5 and
# 6.9 of the 31B.
BETWEEN_OPERATORS = 0.08
WIDTH = math.log1p(BETWEEN_OPERATORS)
# With a drafter they depend on the text, and the reports had other texts.
OF_TEXT = frozenset({"decode", "total", "request", "tokens_per_step", "acceptance"})
# Metric of a recipe's expected figure -> metric of a cell. recipes/schema.json has the same names.
METRICS = {
    "decode": "decode",
    "prefill": "prefill",
    "time to first chunk": "first_chunk",
    "time to first token": "first_token",
    "time to first answer": "first_answer",
    "step": "step",
    "acceptance": "acceptance",
    "tokens per step": "tokens_per_step",
    "cold start": "start",
    "warm start": "start",
    "memory used": "memory",
}
# Expected figures that the bench cannot measure, and where they are seen.
ELSEWHERE = {
    "KV cache": "not a figure of the bench: the gate kv-tokens and the log of the start have it",
    "model": "not a figure of the bench: the log of the start has it",
    "quality kept": "not a figure of the bench: a test of answers",
}
# The start whose cell has the figure.
STARTS = {"cold start": "cold", "warm start": "warm", "memory used": "cold"}
# The load that an expected figure means unless it says otherwise.
USUAL = {"depth": 0, "streams": 1}
TOGETHER = "together"
FACTORS = {("GB", "GiB"): GB / GIB}


def _beside(record: CellRecord, metric: str, values: Sequence[float], width: float, note: str) -> Row:
    """Return the row of a figure beside values that it was expected to have. `old` is the nearest of what lies between
    them."""
    measured = float(record["figures"][metric]["median"])
    end = min(max(measured, min(values)), max(values))
    judgement = judge(metric, end, measured, width) if measured > 0 else "shown"
    return Row(record["cell"]["id"], metric, UNITS[metric], end, measured, width, judgement, note, True)


def reported_rows(recipe: Document, run: Evidence) -> Iterator[Row]:
    """Yield the figures of cells that a field report has of the recipe."""
    for (cell, metric), figures in reported.of_recipe(recipe["name"]).items():
        record = run.cells.get(cell)
        if record is None or worthless(record) or metric not in record["figures"]:
            continue
        note = "; ".join(f"{one.value}, field report {one.report}" for one in figures)
        row = _beside(record, metric, [one.value for one in figures], WIDTH, note)
        of_text = "drafter" in recipe and metric in OF_TEXT and row.judgement == "worse"
        note += "; of another text, which the drafter depends on"
        yield replace(row, judgement="shown", note=note) if of_text else row


def forecast_rows(recipe: Document, run: Evidence) -> Iterator[Row]:
    """Yield the speed, the first token and the prefill of each cell beside its forecast, judged where the cell is
    measured for them."""
    for record in run.cells.values():
        if not record["cell"]["server"] and not worthless(record):
            yield from _forecast_of(recipe, record)


def _forecast_of(recipe: Document, record: CellRecord) -> Iterator[Row]:
    load, figures, leading = record["cell"], record["figures"], leading_metrics(record["cell"])
    prompt = load["depth"] + load["prompt"]
    speed = forecast.predicted(recipe, ForecastRequest(prompt + load["output"] // 2, load["streams"]))
    metric, streams = ("total", load["streams"]) if "total" in figures else ("decode", 1)
    if speed is None:
        for one in filter(figures.__contains__, leading):
            measured, note = float(figures[one]["median"]), "no forecast for this recipe"
            yield Row(load["id"], one, UNITS[one], None, measured, None, "not measured", note)
        return

    def inside(metric: str, low: float, high: float) -> Row:
        row = _beside(record, metric, (low, high), 0.0, f"forecast {low:.4g} to {high:.4g}")
        return row if metric in leading else replace(row, judgement="shown", leading=False)

    if metric in figures:
        row = inside(metric, *(streams * end for end in speed.interval(speed.on(load["corpus"]))))
        above = row.new is not None and row.new > streams * speed.ceiling * (1 + speed.spread)
        note = "; above the forecast, also with every drafted token accepted" if above else ""
        yield replace(row, note=row.note + note)
    first = forecast.predicted(recipe, ForecastRequest(prompt, load["streams"]))
    if first is None or not first.first_token_s:
        return
    low, high = (
        first.first_token_s / (1 + first.first_token_spread),
        first.first_token_s * (1 + first.first_token_spread),
    )
    if FIRST in figures:
        yield inside(FIRST, 1000 * low, 1000 * high)
    if "prefill" in figures:
        yield inside("prefill", prompt / high, prompt / low)


def expected_rows(recipe: Document, run: Evidence) -> Iterator[Row]:
    """Yield every expected figure of the recipe beside what was measured."""
    for entry in recipe.get("expected", []):
        metric = measured_as(entry)
        label = f"{entry['metric']}, {entry['load']}"
        cell = _cell(entry, metric, run) if metric else None
        if cell is None:
            reason = "no cell of this load was measured" if metric else ELSEWHERE[entry["metric"]]
            yield Row(label, entry["metric"], entry["unit"], entry["value"], None, None, "not measured", reason)
            continue
        yield _judged(label, entry, metric, cell)


def evidence_rows(recipe: Recipe, run: Evidence) -> Iterator[Row]:
    """Yield the figures of a run beside the recipe's evidence of the same profile.

    Evidence that differs from the recipe on a Spark says nothing about one. Raises RefusedError for a broken file.
    """
    for group in recipe_evidence.groups(recipe, paths.RECIPES, differing=False):
        for reference in group.runs:
            if reference.run["profile"].get("name") == run.run["profile"].get("name") and reference.run != run.run:
                yield from filter(None, map(_between_operators, compare([reference], run).rows))


def _between_operators(row: Row) -> Row | None:
    """Return a row of two operators' servers, which differ by more than the noise; None if it is not judged."""
    if row.old is None or row.new is None or row.band is None:
        return None
    width = max(row.band, WIDTH)
    if row.note.startswith(TOO_NOISY):
        return replace(row, band=width)
    return replace(row, band=width, judgement=judge(row.metric, row.old, row.new, width), note="")


def measured_as(entry: Document) -> str:
    """Return the metric of a cell that an expected figure is; empty if the bench does not measure it."""
    metric = METRICS.get(entry["metric"], "")
    return "total" if metric == "decode" and TOGETHER in entry["load"] else metric


def factor(entry: Document, metric: str) -> float:
    """Return what the value is multiplied by for the unit of the metric; 0 for a unit of something else."""
    return 1.0 if entry["unit"] == UNITS[metric] else FACTORS.get((entry["unit"], UNITS[metric]), 0.0)


def has_load(entry: Document, cell: Cell) -> bool:
    """Return True for a cell that measures the load of an expected figure."""
    if start := STARTS.get(entry["metric"]):
        return bool(cell["server"].get("start") == start)
    wanted: dict[str, Any] = {**USUAL, **entry.get("cell", {})}
    load: dict[str, Any] = dict(cell)
    return "cell" in entry and not cell["server"] and all(load[name] == value for name, value in wanted.items())


def _judged(label: str, entry: Document, metric: str, record: CellRecord) -> Row:
    scale = factor(entry, metric)
    if not scale:
        note = f"unit {entry['unit']} instead of {UNITS[metric]}"
        return Row(label, metric, entry["unit"], entry["value"], None, None, "not measured", note)
    return _beside(record, metric, [entry["value"] * scale], WIDTH, f"{label}; {entry['source']}")


def _cell(entry: Document, metric: str, run: Evidence) -> CellRecord | None:
    """Return the first measured cell with the metric and the load."""
    counted = (cell for cell in run.cells.values() if not worthless(cell) and metric in cell["figures"])
    return next((cell for cell in counted if has_load(entry, cell["cell"])), None)
