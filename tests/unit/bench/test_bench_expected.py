"""Every figure that a recipe expects is shown, and judged if the bench measures it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from fakes.bench_runs import cell_record, parsed, run_record
from project_files import DATA
from vllm_spark.bench import references
from vllm_spark.core import paths
from vllm_spark.recipe import loader

CASES = yaml.load((DATA / "bench_expected.yml").read_text(), yaml.CSafeLoader)
ENTRY = {"load": "one stream", "source": "a test", "cell": {"streams": 1}}
CELL = {
    "id": "c",
    "corpus": "code",
    "prompt": 512,
    "output": 128,
    "depth": 0,
    "streams": 1,
    "sampling": {},
    "server": {},
}


def name_of(case: dict[str, Any]) -> str:
    return f"{case['expected']['metric']}, {case['judgement']}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_an_expected_figure_is_shown_and_judged(case: dict[str, Any]) -> None:
    figures = {metric: [value] for metric, value in case["figures"].items()}
    run = parsed(run_record(), cell_record(figures, cell=CELL | case.get("cell", {})))
    (row,) = references.expected_rows({"expected": [ENTRY | case["expected"]]}, run)
    assert (row.judgement, bool(row.note)) == (case["judgement"], True)
    assert case["expected"]["metric"] in f"{row.cell} {row.note}"


def test_every_metric_of_a_recipe_is_known_and_has_a_case() -> None:
    schema = json.loads((paths.RECIPES / "schema.json").read_text())
    metrics = schema["properties"]["expected"]["items"]["properties"]["metric"]["enum"]
    assert set(metrics) == {*references.METRICS, *references.ELSEWHERE}
    assert {case["expected"]["metric"] for case in CASES} == set(metrics)


def test_every_expected_figure_of_the_catalogue_has_a_metric_of_the_bench_in_its_unit() -> None:
    entries = [
        entry for name in loader.names([paths.RECIPES]) for entry in loader.load(name).document.get("expected", [])
    ]
    wanted = [(entry, metric) for entry in entries if (metric := references.measured_as(entry))]
    assert len(wanted) > 20
    assert [entry for entry, metric in wanted if not references.factor(entry, metric)] == []
