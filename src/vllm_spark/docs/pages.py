"""The generated pages of docs/reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def outdated() -> dict[str, str]:
    """Return name -> new text of every page that is missing or differs from the toolkit's data."""
    texts = {name: page() for name, page in PAGES.items()}
    return {name: text for name, text in texts.items() if read(name) != text}


def read(name: str) -> str | None:
    """Return the page as the checkout has it, or None if it is missing."""
    file = FOLDER / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def write(name: str, text: str) -> None:
    """Write a page into docs/reference."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(text, encoding="utf-8")


def stale_refusal(name: str) -> Refusal:
    """Return the refusal of a page that is out of date."""
    return STALE_PAGE(
        what=f"docs/reference/{name} is out of date",
        expected="the page that `vllm-spark docs` writes from the toolkit's data",
        fix="vllm-spark docs.",
    )
