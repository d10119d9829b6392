"""Generated files: the pages of docs/reference, the gates in recipes/schema.json, and a table in README.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.docs import (
    bench,
    bench_seeds,
    checklist,
    compatibility,
    findings,
    prediction,
    recipe_schema,
    recipes,
    variables,
    where_to_begin,
)

STALE_PAGE = register("stale-page", runbook="recipe-refused")

ROOT = paths.ROOT

# File in docs/reference -> the function that returns its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "bench.md": bench.text,
    "bench-seeds.md": bench_seeds.text,
    "checklist.md": checklist.text,
    "compatibility.md": compatibility.text,
    "findings.md": findings.text,
    "prediction.md": prediction.text,
    "recipes.md": recipes.text,
    "variables.md": variables.text,
}


def outdated() -> dict[str, str]:
    """Return path in the repository -> new text of every generated file that is missing or differs from the data."""
    texts = {f"docs/reference/{name}": page() for name, page in PAGES.items()}
    texts["recipes/schema.json"] = recipe_schema.text()
    if readme := read("README.md"):
        texts["README.md"] = where_to_begin.readme(readme)
    return {name: text for name, text in texts.items() if read(name) != text}


def read(name: str) -> str | None:
    """Return a generated file as the checkout has it, or None if it is missing."""
    file = ROOT / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def write(name: str, text: str) -> None:
    """Write a generated file."""
    file = ROOT / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def stale_refusal(name: str) -> Refusal:
    """Return the refusal of a page that is out of date."""
    return STALE_PAGE(
        what=f"{name} is out of date",
        expected="the file that `vllm-spark docs` writes from the toolkit's data",
        fix=Fix("vllm-spark docs"),
    )
