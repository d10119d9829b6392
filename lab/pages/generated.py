"""Generated files: pages of docs/reference, lab and roles, the playbooks of the root, the gates of recipes/schema.json,
the packages of an execution environment, a table of README.md and one of choose-a-recipe.md."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping

from lab.pages import (
    any_model,
    bench,
    checklist,
    compatibility,
    field_reports,
    findings,
    markdown,
    measured_rows,
    nvidia_catalogue,
    prediction,
    recipe_schema,
    recipes,
    role_readmes,
    second_spark,
    support,
    variables,
    verbs,
    where_to_begin,
)
from vllm_spark.core import paths

ROOT = paths.ROOT


def _requirements() -> str:
    """Return the packages of the project, which an execution environment with the collection needs."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return "".join(f"{one}\n" for one in project["dependencies"])


# File in the repository -> the function that returns its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/bench.md": bench.text,
    "docs/reference/checklist.md": checklist.text,
    "docs/reference/compatibility.md": compatibility.text,
    "docs/reference/findings.md": findings.text,
    "docs/reference/nvidia-catalogue.md": nvidia_catalogue.text,
    "docs/reference/prediction.md": prediction.text,
    "docs/reference/recipes.md": recipes.text,
    "docs/reference/support.md": support.text,
    "docs/reference/variables.md": variables.text,
    "lab/bench/field-reports.md": field_reports.text,
    "lab/forecast/any-model.md": any_model.text,
    "lab/forecast/measured-rows.md": measured_rows.text,
    "meta/ee-requirements.txt": _requirements,
    **role_readmes.pages(),
    **verbs.pages(),
}

# Page -> the function that returns it with its table of today.
TABLES: Mapping[str, Callable[[str], str]] = {
    "README.md": where_to_begin.readme,
    "docs/operations/choose-a-recipe.md": second_spark.page,
}


def outdated() -> dict[str, str]:
    """Return path in the repository -> new text of every generated file that is missing or differs from the data."""
    texts = {
        name: markdown.linked(page(), name) if name.startswith("docs/") else page() for name, page in PAGES.items()
    }
    texts["recipes/schema.json"] = recipe_schema.text()
    for name, written in TABLES.items():
        if text := read(name):
            texts[name] = written(text)
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
