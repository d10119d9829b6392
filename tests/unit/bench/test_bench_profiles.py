"""Profiles: expansion into cells, refusals of bad ones, and what fits into a deployment."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from project_files import DATA
from vllm_spark.bench import profile_fit, profiles, reported
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.bench import corpora
from vllm_spark.node.bench.records import Cell

BAD: list[dict[str, Any]] = yaml.load((DATA / "bench_profiles.yml").read_text(), yaml.CSafeLoader)
GOOD: dict[str, Any] = {
    "name": "good",
    "summary": "A profile of the tests with two cells.",
    "source": "made for the tests",
    "rules": {"least_runs": 1, "most_runs": 2, "spread": 0.01, "warm_up": 1},
    "cells": [{"corpus": "chat", "prompt": 128, "output": 64, "streams": [1, 2]}],
}
NEEDED = {"smoke", "standard", "depth", "streams", "arena", "soak", "drafter", "compiled", "start", "field-reports"}


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
        pooled = {"role", "documents"}
        assert all(set(cell) | pooled == set(get_type_hints(Cell)) for cell in profile.cells)
        assert all(len(pooled & set(cell)) in (0, 2) for cell in profile.cells)
        assert {cell["corpus"] for cell in profile.cells} <= set(corpora.CLASSES)


def test_the_profile_of_the_field_reports_has_the_cells_of_their_figures() -> None:
    profile, reports = profiles.load("field-reports"), reported.load()
    assert profile.cells == reports.cells
    for recipe in {figure.recipe for figure in reports.figures} - {""}:
        figures = {figure.cell for figure in reports.figures if figure.recipe == recipe}
        assert {cell["id"] for cell in profile.of_recipe(recipe)} == figures
    sweep = [cell["server"] for cell in profile.of_recipe("gemma-4-26b-a4b-fp8-mtp") if cell["server"]]
    assert sweep == [{"speculative_tokens": tokens} for tokens in (2, 3, 4, 5, 6)]


def test_a_figure_of_a_report_is_no_part_of_the_profile_of_a_run() -> None:
    document = profiles.load("field-reports").document
    assert "not_measured" not in document
    assert {key for row in document["cells"] for key in row} <= profiles.FIELDS.keys()
    smoke = profiles.load("smoke")
    assert smoke.of_recipe("any") == smoke.cells


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
