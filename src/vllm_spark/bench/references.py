"""What a run is judged against beside an earlier run: the forecast, expected figures and evidence of its recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_spark.bench import recipe_evidence
from vllm_spark.bench.compare import MORE_IS_BETTER, Row, compare, worthless
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core.types import Document
from vllm_spark.core.units import GB, GIB
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import UNITS, Cell, CellRecord
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

# Operators with the same configuration differ by 8 %: 35.0, 36.9, 38 to 40 and 40.85 tok/s of the 26B in FP8, 6.5 and
# 6.9 of the 31B.
BETWEEN_OPERATORS = 0.08
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


def forecast_rows(recipe: Document, run: Evidence) -> Iterator[Row]:
    """Yield the decode of each cell beside its forecast. `old` is the nearer end of the forecast's interval."""
    for name, cell in run.cells.items():
        if cell["cell"]["server"] or worthless(cell) or "decode" not in cell["figures"]:
            continue
        load = cell["cell"]
        leads = leading_metrics(load)[0] in ("decode", "total")
        context = load["depth"] + load["prompt"] + load["output"] // 2
        speed = forecast.predicted(recipe, ForecastRequest(context=context, streams=load["streams"]))
        measured = float(cell["figures"]["decode"]["median"])
        if speed is None:
            yield Row(name, "decode", "tok/s", None, measured, None, "not measured", "no forecast for this recipe")
            continue
        end = min(max(measured, speed.low), speed.high)
        note = f"forecast {speed.low:.1f} to {speed.high:.1f}"
        if measured > speed.ceiling * (1 + speed.spread):
            note += "; above the forecast, also with every drafted token accepted"
        judgement = "worse" if measured < speed.low else "better" if measured > speed.high else "same"
        yield Row(name, "decode", "tok/s", end, measured, 0.0, judgement, note, leads)  # type: ignore[arg-type]


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


def evidence_rows(recipe: Recipe, run: Evidence, folder: Path) -> Iterator[Row]:
    """Yield the figures of a run beside the recipe's evidence of the same profile. `folder` is the recipe's.

    Evidence that differs from the recipe on a Spark says nothing about one. Raises RefusedError for a broken file.
    """
    for group in recipe_evidence.groups(recipe, folder, differing=False):
        for reference in group.runs:
            if reference.run["profile"].get("name") == run.run["profile"].get("name") and reference.run != run.run:
                yield from filter(None, map(_between_operators, compare(reference, run).rows))


def _between_operators(row: Row) -> Row | None:
    """Return a row of two operators' servers, which differ by more than the noise; None if it lacks a value."""
    if row.old is None or row.new is None or row.band is None:
        return None
    width = max(row.band, BETWEEN_OPERATORS)
    same = row.judgement in ("worse", "better") and abs(row.new - row.old) <= width * abs(row.old)
    return replace(row, band=width, judgement="same" if same else row.judgement)


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


def _judged(label: str, entry: Document, metric: str, cell: CellRecord) -> Row:
    scale = factor(entry, metric)
    if not scale:
        note = f"unit {entry['unit']} instead of {UNITS[metric]}"
        return Row(label, metric, entry["unit"], entry["value"], None, None, "not measured", note)
    value, measured = entry["value"] * scale, float(cell["figures"][metric]["median"])
    ratio = measured / value - 1 if metric in MORE_IS_BETTER else 1 - measured / value
    judgement = "worse" if ratio < -BETWEEN_OPERATORS else "better" if ratio > BETWEEN_OPERATORS else "same"
    note = f"{cell['cell']['id']}; {entry['source']}"
    return Row(label, metric, UNITS[metric], value, measured, BETWEEN_OPERATORS, judgement, note, True)  # type: ignore[arg-type]


def _cell(entry: Document, metric: str, run: Evidence) -> CellRecord | None:
    """Return the first measured cell with the metric and the load."""
    counted = (cell for cell in run.cells.values() if not worthless(cell) and metric in cell["figures"])
    return next((cell for cell in counted if has_load(entry, cell["cell"])), None)
