"""Profiles: expansion into cells, refusals of bad ones, what fits into a deployment, and the cells of the reports."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from project_files import DATA
from vllm_spark.bench import profile_fit, profiles, references, variants
from vllm_spark.bench.references import BETWEEN_OPERATORS
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.bench import corpora
from vllm_spark.node.bench.records import UNITS, Cell
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

BAD: list[dict[str, Any]] = yaml.safe_load((DATA / "bench_profiles.yml").read_text())
GOOD: dict[str, Any] = {
    "name": "good",
    "summary": "A profile of the tests with two cells.",
    "source": "made for the tests",
    "rules": {"least_runs": 1, "most_runs": 2, "spread": 0.01, "warm_up": 1},
    "cells": [{"corpus": "chat", "prompt": 128, "output": 64, "streams": [1, 2]}],
}
NEEDED = {"smoke", "standard", "depth", "streams", "seeds", "arena", "soak", "drafter", "compiled", "start"}
# Cells by table of field report 003 that a report prints in full: rows of figures.
TABLES_OF_003 = {1: 12, 2: 24, 3: 7, 4: 4, 5: 4, 6: 3, 7: 3, 8: 2, 9: 5}


def written(folder: Path, document: dict[str, Any]) -> Path:
    file = folder / "good.yml"
    file.write_text(yaml.safe_dump(document))
    return file


def refusal(error: pytest.ExceptionInfo[RefusedError]) -> str:
    return str(error.value)


def test_the_profiles_of_the_toolkit_are_sound() -> None:
    assert set(profiles.names()) >= NEEDED
    for name in profiles.names():
        profile = profiles.load(name)
        ids = [cell["id"] for cell in profile.cells]
        assert len(ids) == len(set(ids)) > 0
        assert all(set(cell) == set(get_type_hints(Cell)) for cell in profile.cells)
        assert {cell["corpus"] for cell in profile.cells} <= set(corpora.CLASSES)


@pytest.mark.parametrize("case", BAD, ids=[case["what"] for case in BAD])
def test_a_bad_profile_is_refused(case: dict[str, Any], tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD) | case.get("change", {})
    if "cell" in case:
        document["cells"][0] = {"corpus": "chat", "prompt": 128, "output": 64} | case["cell"]
    if "row" in case:
        document["cells"].append(case["row"])
    with pytest.raises(RefusedError) as error:
        profiles.load("good", folder=written(tmp_path, document).parent)
    assert case["what"] in refusal(error)
    assert case["expected"] in refusal(error)
    assert "Fix: correct " in refusal(error)


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "good.yml").write_text("name: [")
    with pytest.raises(RefusedError, match="not YAML"):
        profiles.load("good", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "fix"), [("standart", "name 'standard'."), ("dep", "name 'depth'."), ("zzz", "name one of 'arena', ")]
)
def test_an_unknown_profile_is_refused_with_the_nearest_name(name: str, fix: str) -> None:
    with pytest.raises(RefusedError) as error:
        profiles.load(name)
    assert f"Fix: {fix}" in refusal(error)


def test_a_row_makes_every_combination_with_the_server_changing_last() -> None:
    row = {"corpus": ["chat", "code"], "prompt": 128, "output": [32, 64], "server": [{"mode": "eager"}, {}]}
    assert [cell["id"] for cell in profiles.cells_of(row)] == [
        "chat p128 o32 d0 s1 mode=eager",
        "chat p128 o64 d0 s1 mode=eager",
        "code p128 o32 d0 s1 mode=eager",
        "code p128 o64 d0 s1 mode=eager",
        "chat p128 o32 d0 s1",
        "chat p128 o64 d0 s1",
        "code p128 o32 d0 s1",
        "code p128 o64 d0 s1",
    ]


def test_the_id_of_a_cell_has_what_is_unusual() -> None:
    sampling = {"temperature": 1.0, "top_k": 64, "chat_template_kwargs": {"enable_thinking": True}}
    [cell] = profiles.cells_of({"corpus": "json", "prompt": 9, "output": 8, "depth": 7, "sampling": sampling})
    assert cell["id"] == "json p9 o8 d7 s1 temperature=1.0 top_k=64 chat_template_kwargs=enable_thinking:true"
    assert cell["sampling"] == sampling


def test_hours_are_changed_where_a_profile_has_them() -> None:
    assert profiles.load("soak", {"hours": 0.5}).rules.hours == 0.5
    with pytest.raises(RefusedError, match="profile smoke has no rule 'hours'"):
        profiles.load("smoke", {"hours": 2})
    with pytest.raises(RefusedError, match=r"rules.hours: 0 — expected: more than 0"):
        profiles.load("soak", {"hours": 0})


# cell's lengths, limits, words of the reason or none
FITS: list[tuple[dict[str, int], tuple[int | None, int | None], str]] = [
    ({"prompt": 2048, "depth": 4096}, (8192, 4), ""),
    ({"prompt": 2048, "depth": 8192}, (8192, 4), "max-model-len is 8192"),
    ({"prompt": 8000, "output": 192}, (8192, 4), "needs 8256 tokens with the chat template"),
    ({"streams": 5}, (8192, 4), "needs 5 streams; max-num-seqs is 4"),
    ({"streams": 64, "depth": 100000}, (None, None), ""),
]


@pytest.mark.parametrize(("changes", "limits", "why"), FITS)
def test_cells_that_do_not_fit_are_left_out_with_a_reason(
    changes: dict[str, int], limits: tuple[int | None, int | None], why: str
) -> None:
    [cell] = profiles.cells_of({"corpus": "chat", "prompt": 128, "output": 64} | changes)
    result = profile_fit.fit([cell], *limits)
    assert bool(result.cells) == (not why)
    assert [out.cell for out in result.left_out] == ([cell] if why else [])
    assert all(why in out.why for out in result.left_out)


def test_the_time_of_a_profile_follows_from_its_cells() -> None:
    smoke, soak = profiles.load("smoke"), profiles.load("soak")
    assert profile_fit.seconds(smoke, smoke.cells, decode=7, prefill=1500) == pytest.approx(60, rel=0.5)
    assert profile_fit.seconds(soak, soak.cells, decode=7, prefill=1500) == 4 * 3600


def test_the_arena_has_each_cell_of_spark_arena_once() -> None:
    cells = profiles.load("arena").cells
    depths, streams = (0, 4096, 8192, 16384, 32768, 65535, 100000), (1, 2, 5, 10)
    assert {(cell["depth"], cell["streams"]) for cell in cells} == {(d, s) for d in depths for s in streams}
    assert {(cell["prompt"], cell["output"]) for cell in cells} == {(2048, 128)}


def test_the_figures_of_the_reports_name_recipes_and_metrics() -> None:
    figures = profiles.load("seeds").figures
    assert {figure.metric for figure in figures} <= set(UNITS)
    assert {figure.recipe for figure in figures} - {""} <= set(loader.names([paths.RECIPES]))
    assert {figure.report[:3] for figure in figures} == {"000", "001", "002", "003", "004"}


def test_a_figure_of_a_report_agrees_with_what_its_recipe_expects() -> None:
    seeds = profiles.load("seeds")
    cells = {cell["id"]: cell for cell in seeds.cells}
    far, judged = [], 0
    for figure in (one for one in seeds.figures if one.recipe):
        recipe, cell = loader.load(figure.recipe), cells[figure.cell]
        for low, high in _ends(recipe, figure.metric, cell):
            judged += 1
            if not low * (1 - BETWEEN_OPERATORS) <= figure.value <= high * (1 + BETWEEN_OPERATORS):
                far.append(f"{figure.report}: {figure.recipe}, {figure.metric} {figure.value}, {low:.1f} to {high:.1f}")
    assert far == []
    assert judged > len(seeds.figures) / 4


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
            yield speed.low, speed.high


def test_a_recipe_without_a_compile_cache_has_no_figure_of_a_warm_start() -> None:
    warm = [one for one in profiles.load("seeds").figures if one.metric == "start" and "start=warm" in one.cell]
    assert warm
    recipes = [loader.load(one.recipe).document for one in warm if one.recipe]
    assert [one["name"] for one in recipes if one.get("env", {}).get("VLLM_DISABLE_COMPILE_CACHE") == "1"] == []


def test_every_row_of_the_tables_of_report_003_has_a_cell() -> None:
    rows = {figure.report for figure in profiles.load("seeds").figures}
    expected = {f"003 table {table} row {row + 1}" for table, rows_ in TABLES_OF_003.items() for row in range(rows_)}
    assert {row for row in rows if re.match(r"003 table", row)} == expected


def test_a_deployment_measures_the_cells_of_its_recipe() -> None:
    seeds = profiles.load("seeds")
    sweep = [cell["server"] for cell in profiles.for_recipe(seeds, "gemma-4-26b-a4b-fp8-mtp") if cell["server"]]
    assert sweep == [{"speculative_tokens": tokens} for tokens in (2, 3, 4, 5, 6)]
    assert profiles.for_recipe(seeds, "another") == seeds.cells
