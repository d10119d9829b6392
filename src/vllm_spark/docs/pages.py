"""Generated files: the pages of docs/reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.docs import checklist, compatibility, findings, prediction, recipes

STALE_PAGE = register("stale-page", runbook="recipe-refused")

FOLDER = paths.ROOT / "docs" / "reference"

# File in docs/reference -> the function that returns its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "checklist.md": checklist.text,
    "compatibility.md": compatibility.text,
    "findings.md": findings.text,
    "prediction.md": prediction.text,
    "recipes.md": recipes.text,
}


def generated() -> dict[str, tuple[Path, str]]:
    """Return each generated file by its path in the repository, with its absolute path and its text."""
    return {f"docs/reference/{name}": (FOLDER / name, text()) for name, text in PAGES.items()}


def stale() -> dict[str, tuple[Path, str]]:
    """Return the generated files that are missing or differ from the toolkit's data."""
    return {name: (file, text) for name, (file, text) in generated().items() if on_disk(file) != text}


def on_disk(file: Path) -> str | None:
    """Return the text of a file in the checkout, or None if it does not exist."""
    return file.read_text(encoding="utf-8") if file.is_file() else None


def stale_refusal(name: str) -> Refusal:
    """Return the refusal of a generated file that is out of date."""
    return STALE_PAGE(
        what=f"{name} is out of date",
        expected="the file that `vllm-spark docs` writes from the toolkit's data",
        fix="vllm-spark docs.",
    )
