"""The pages of the bench: every metric is defined, and every reported figure stands beside its cell."""

from __future__ import annotations

from lab.pages import bench, field_reports
from vllm_spark.bench import profiles, reported
from vllm_spark.node.bench import faults, leading
from vllm_spark.node.bench.records import UNITS


def test_every_metric_has_a_definition_and_a_source() -> None:
    assert set(bench.DEFINITIONS) == set(UNITS)
    assert all(definition.text and definition.source for definition in bench.DEFINITIONS.values())


def test_the_page_names_every_profile_and_every_fault() -> None:
    page = bench.text()
    assert [name for name in (*UNITS, *profiles.names(), *faults.KINDS) if f"| `{name}` |" not in page] == []


def test_every_reported_figure_stands_beside_its_cell() -> None:
    page, reports = field_reports.text(), reported.load()
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert [figure for figure in reports.figures if not any(f"`{figure.cell}`" in line for line in lines)] == []
    assert [entry for entry in reports.not_measured if entry["why"] not in page] == []
    assert "### 004, table 2" in page
    assert "| 3 | gemma-4-26b-a4b-fp8-mtp | decode | 80.0 tok/s | `code p512 o512 d0 s1 speculative_tokens=4` |" in page


def test_the_page_has_the_leading_figures_of_every_kind_of_cell() -> None:
    page = bench.text()
    cells = [cell for name in profiles.names() for cell in profiles.load(name).cells]
    kinds = {", ".join(f"`{metric}`" for metric in leading.leading_metrics(cell)) for cell in cells}
    assert len(kinds) >= 5
    assert [kind for kind in kinds if f"| {kind} |" not in page] == []
