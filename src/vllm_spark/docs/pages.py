"""Generated files: the pages of docs/reference and the gates in recipes/schema.json."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.docs import checklist, compatibility, findings, prediction, recipe_schema
from vllm_spark.sizing import catalogue

STALE_PAGE = register("stale-page", runbook="recipe-refused")

FOLDER = paths.ROOT / "docs" / "reference"

# File in docs/reference -> the function that returns its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "checklist.md": checklist.text,
    "compatibility.md": compatibility.text,
    "findings.md": findings.text,
    "prediction.md": prediction.text,
    "recipes.md": catalogue.page,
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `docs`."""
    docs = commands.add_parser("docs", help="write the pages of docs/reference and the gates of recipes/schema.json")
    docs.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")


def run(args: argparse.Namespace) -> int:
    """Write the stale files and return 0. With --check, raises RefusedError with every stale file instead."""
    stale = {name: (file, text) for name, (file, text) in generated().items() if on_disk(file) != text}
    if args.check and stale:
        raise RefusedError(_stale(name) for name in stale)
    for name, (file, text) in stale.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(name)
    return 0


def generated() -> dict[str, tuple[Path, str]]:
    """Return each generated file by its path in the repository: where it is, and its text."""
    pages = {f"docs/reference/{name}": (FOLDER / name, text()) for name, text in PAGES.items()}
    return {**pages, "recipes/schema.json": (recipe_schema.FILE, recipe_schema.text())}


def on_disk(file: Path) -> str | None:
    """Return the text of a file in the checkout; None if it does not exist."""
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _stale(name: str) -> Refusal:
    return STALE_PAGE(
        what=f"{name} is not what the toolkit's data say",
        expected="the file as `vllm-spark docs` writes it",
        fix="vllm-spark docs.",
    )
