"""docs/reference: pages that are made from data of the toolkit, and the check that none is stale."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.docs import checklist, compatibility, findings, prediction
from vllm_spark.sizing import catalogue

STALE_PAGE = register("stale-page", runbook="recipe-refused")

FOLDER = paths.ROOT / "docs" / "reference"

# File in docs/reference -> what makes its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "checklist.md": checklist.text,
    "compatibility.md": compatibility.text,
    "findings.md": findings.text,
    "prediction.md": prediction.text,
    "recipes.md": catalogue.page,
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    docs = commands.add_parser("docs", help="write the pages of docs/reference that are made from data")
    docs.add_argument(
        "--check", action="store_true", help="write nothing; fail where a page is not what would be written"
    )


def run(asked: argparse.Namespace) -> int:
    """Write the pages, or check them. Raises RefusedError with every stale page."""
    made = {name: page() for name, page in PAGES.items()}
    old = {name: text for name, text in made.items() if written(name) != text}
    if asked.check and old:
        raise RefusedError(_stale(name) for name in old)
    for name, text in old.items():
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")
    return 0


def written(name: str) -> str | None:
    """The page as it is in the checkout."""
    file = FOLDER / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _stale(name: str) -> Refusal:
    return STALE_PAGE(
        what=f"docs/reference/{name} is not what the toolkit's data say",
        expected="the page as `vllm-spark docs` writes it",
        fix="vllm-spark docs.",
    )
