"""The figures of the field reports: their recipes, what these expect, and their cells."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_spark.bench import profiles, references, reported, variants
from vllm_spark.bench.references import BETWEEN_OPERATORS
from vllm_spark.core import paths
from vllm_spark.node.bench.records import UNITS, Cell
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

REPORTS = reported.load()

# Cells by table of field report 003 that a report prints in full: rows of figures.
TABLES_OF_003 = {1: 12, 2: 24, 3: 7, 4: 4, 5: 4, 6: 3, 7: 3, 8: 2, 9: 5}


def test_the_figures_of_the_reports_name_recipes_and_metrics() -> None:
    assert {figure.metric for figure in REPORTS.figures} <= set(UNITS)
    assert {figure.recipe for figure in REPORTS.figures} - {""} <= set(loader.names([paths.RECIPES]))
    assert {figure.report[:3] for figure in REPORTS.figures} == {"000", "001", "002", "003", "004"}


def test_a_figure_of_a_report_agrees_with_what_its_recipe_expects() -> None:
    cells = {cell["id"]: cell for cell in REPORTS.cells}
    far, judged = [], 0
    for figure in (one for one in REPORTS.figures if one.recipe):
        recipe, cell = loader.load(figure.recipe), cells[figure.cell]
        for low, high in _ends(recipe, figure.metric, cell):
            judged += 1
            if not low * (1 - BETWEEN_OPERATORS) <= figure.value <= high * (1 + BETWEEN_OPERATORS):
                far.append(f"{figure.report}: {figure.recipe}, {figure.metric} {figure.value}, {low:.1f} to {high:.1f}")
    assert far == []
    assert judged > len(REPORTS.figures) / 4


def _ends(recipe: Recipe, metric: str, cell: Cell) -> Iterator[tuple[float, float]]:
    """Yield what a recipe expects of a cell, and the forecast of its decode, each with its two ends."""
    for entry in recipe.document.get("expected", []):
        if references.measured_as(entry) == metric and references.has_load(entry, cell):
            yield (entry["value"] * references.factor(entry, metric),) * 2
    if metric == "decode":
        changes = [variants.OVERRIDES[key](value) for key, value in cell["server"].items() if key in variants.OVERRIDES]
        document = loader.merged(recipe, changes[0] if changes else {})
        load = ForecastRequest(cell["depth"] + cell["prompt"] + cell["output"] // 2, cell["streams"])
        if speed := forecast.predicted(document, load):
            yield speed.interval(speed.on(cell["corpus"]))


def test_a_recipe_without_a_compile_cache_has_no_figure_of_a_warm_start() -> None:
    warm = [one for one in REPORTS.figures if one.metric == "start" and "start=warm" in one.cell]
    assert warm
    recipes = [loader.load(one.recipe).document for one in warm if one.recipe]
    assert [one["name"] for one in recipes if one.get("env", {}).get("VLLM_DISABLE_COMPILE_CACHE") == "1"] == []


def test_every_row_of_the_tables_of_report_003_has_a_cell() -> None:
    rows = {figure.report for figure in REPORTS.figures}
    expected = {f"003 table {table} row {row + 1}" for table, rows_ in TABLES_OF_003.items() for row in range(rows_)}
    assert {row for row in rows if re.match(r"003 table", row)} == expected


def test_a_profile_or_a_field_report_has_the_cell_of_every_expected_figure() -> None:
    cells = [*REPORTS.cells, *(cell for name in profiles.names() for cell in profiles.load(name).cells)]
    entries = [
        entry for name in loader.names([paths.RECIPES]) for entry in loader.load(name).document.get("expected", [])
    ]
    measured = [entry for entry in entries if references.measured_as(entry)]
    assert len(measured) > 20
    assert [entry for entry in measured if not any(references.has_load(entry, cell) for cell in cells)] == []
