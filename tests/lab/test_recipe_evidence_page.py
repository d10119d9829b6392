"""The page of recipes shows what was measured where, and links the report of the same runs."""

from __future__ import annotations

from pathlib import Path

from fakes.evidenced_recipe import WHY, folder
from lab.pages import recipe_evidence as page
from vllm_spark.bench import recipe_evidence
from vllm_spark.core import paths
from vllm_spark.recipe import loader


def test_the_figures_of_a_run_are_shown(tmp_path: Path) -> None:
    recipes = folder(tmp_path)
    shown = "\n".join(page.lines(loader.read(recipes / "mine.yml"), recipes))
    assert "| standard | 2026-11-23 | NVIDIA GB10 | 0.21.0 | 6.9 | 350 | 1500 (512) |" in shown
    assert "(../../recipes/evidence/run.html)" in shown
    assert "not those of this recipe" not in shown


def test_a_difference_is_shown_in_its_words(tmp_path: Path) -> None:
    recipes = folder(tmp_path, {"differs": {"gpu": WHY}}, host={"h": {"gpu": "NVIDIA H200"}})
    assert f"  - gpu: {WHY}" in list(page.lines(loader.read(recipes / "mine.yml"), recipes))


def test_the_page_and_the_files_agree() -> None:
    shown = (paths.ROOT / "docs" / "reference" / "recipes.md").read_text()
    groups = [
        group
        for name in loader.names([paths.RECIPES])
        for group in recipe_evidence.groups(loader.load(name), paths.RECIPES)
    ]
    assert len(groups) >= 5
    for group in groups:
        assert f"(../../{page.report(group)})" in shown
        report = (paths.ROOT / page.report(group)).read_text()
        assert len(report) < 500_000
        assert [run.run["id"] for run in group.runs if run.run["id"] not in report] == []
        for run in group.runs:
            first = next(iter(run.cells.values()))["figures"]["decode"]["median"]
            assert f"| {run.run['profile']['name']} | {run.run['started'][:10]} | " in shown
            assert f"| {first:.1f} |" in shown


def test_figures_of_another_gpu_are_never_shown_without_saying_so() -> None:
    for name in loader.names([paths.RECIPES]):
        recipe = loader.load(name)
        for group in recipe_evidence.groups(recipe, paths.RECIPES):
            foreign = [run for run in group.runs if "gpu" in recipe_evidence.differences(recipe, run)]
            shown = "\n".join(page.lines(recipe))
            assert not foreign or f"  - gpu: {group.differs['gpu']}" in shown
