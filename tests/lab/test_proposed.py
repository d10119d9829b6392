"""Recipes that are in the catalogue for a field report: every table has them, and the toolkit proposes others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lab.pages import recipes, where_to_begin
from vllm_spark.cli.init import proposal
from vllm_spark.core import paths
from vllm_spark.recipe import loader, proposed
from vllm_spark.sizing import catalogue, forecast, uses

DOCUMENTS = {name: loader.load(name).document for name in loader.names([paths.RECIPES])}
KEPT = {name: document["kept_for"] for name, document in DOCUMENTS.items() if "kept_for" in document}


def test_the_catalogue_keeps_the_systems_of_the_reports() -> None:
    assert KEPT == {
        "gemma-4-26b-a4b-fp8-mtp-overlay": "field report 004",
        "gemma-4-26b-a4b-nvfp4": "field report 002",
        "gemma-4-26b-a4b-nvfp4-patched": "field report 002",
        "gemma-4-31b-awq": "field report 002",
        "gemma-4-31b-bf16": "field report 002",
        "gemma-4-31b-nvfp4-0.20.2": "field report 000",
    }


def test_every_table_names_the_report() -> None:
    rows = {row[0]: row[catalogue.COLUMNS.index("kept for")] for row in map(catalogue.cells, catalogue.entries())}
    assert {name: report for name, report in rows.items() if report} == KEPT
    sections = recipes.text().split("\n## ")
    named = {section.partition("\n")[0] for section in sections if "- Kept for field report 00" in section}
    assert named == KEPT.keys()


def test_the_toolkit_proposes_other_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: dict[str, set[str]] = {
        "README": {one["name"] for one in where_to_begin.pinned()},
        "plan": {one["name"] for one in forecast.catalogue([paths.RECIPES])},
    }

    def fitting(documents: Sequence[dict[str, Any]], *_: object) -> list[object]:
        offered["init"] = {one["name"] for one in documents}
        raise LookupError

    monkeypatch.setattr(proposal, "_fitting", fitting)
    with pytest.raises(LookupError):
        proposal.deployments(uses.USES[0].word, {}, [paths.RECIPES], None)  # type: ignore[arg-type]
    assert [where for where, names in offered.items() if names & KEPT.keys()] == []
    assert "gemma-4-26b-a4b-fp8" in offered["init"] & offered["README"] & offered["plan"]


def test_a_published_image_is_not_proposed() -> None:
    assert not proposed.is_proposed(DOCUMENTS["glm-5.3-flash-tp2"])
    assert proposed.is_proposed(DOCUMENTS["gpt-oss-20b"])
