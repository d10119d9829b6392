"""Files of a site's recipes: written only if `vllm-spark check` accepts them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from vllm_spark.authoring import recipe_text
from vllm_spark.authoring.new_recipe import NewRecipe
from vllm_spark.core import text
from vllm_spark.core.refusal import register
from vllm_spark.recipe import loader

BAD_NAME = register("bad-recipe-name", runbook="recipe-new")
FILE_EXISTS = register("recipe-exists", runbook="recipe-new")

SCHEMA = "https://vllm-spark.invalid/recipe-1.json"
ARCHITECTURE_SCHEMA = "https://vllm-spark.invalid/architecture-1.json"

# A recipe's file, or that of an architecture beside it.
NAME = re.compile(r"(architectures/)?(?=[^/]{1,52}$)[a-z0-9]+([-.][a-z0-9]+)*\.yml")


def texts(new: NewRecipe) -> dict[str, str]:
    """Return path in the folder -> text of the recipe and of its architectures, the recipe first."""
    files = {f"{new.recipe['name']}.yml": recipe_text.text(new.recipe, SCHEMA, new.questions)}
    for name, document in new.architectures.items():
        files[f"architectures/{name}.yml"] = recipe_text.text(document, ARCHITECTURE_SCHEMA)
    return files


def write(new: NewRecipe, folder: Path, *, replace: bool) -> list[Path]:
    """Write a new recipe and its architectures. Returns the files, the recipe's first."""
    return place(texts(new), folder, replace=replace, source=Path(new.checkpoint.name))


def place(files: Mapping[str, str], folder: Path, *, replace: bool, source: Path) -> list[Path]:
    """Write a recipe (the first file) and what it needs. `source` is what the recipe was made from.

    Raises RefusedError if `check` refuses the recipe, which then names `source`, or if it exists.
    """
    _refuse_paths(files)
    with tempfile.TemporaryDirectory() as trial:
        written = _write(files, Path(trial))
        loader.read(written[0], source)
    existing = [folder / path for path in files if (folder / path).exists()]
    if existing and not replace:
        raise FILE_EXISTS.error(
            what=f"{existing[0]} exists",
            expected="a new file",
            fix="--name NAME for another recipe, or --replace.",
        )
    return _write(files, folder)


def _refuse_paths(files: Mapping[str, str]) -> None:
    """Refuse a name that would be a path to another place."""
    bad = [path for path in files if not NAME.fullmatch(path)]
    if bad:
        raise BAD_NAME.error(
            what=f"the name {text.one_line(bad[0].removesuffix('.yml'))}",
            expected="lower-case words joined by single dashes or dots, at most 48 characters",
            fix="--name NAME.",
        )


def _write(files: Mapping[str, str], folder: Path) -> list[Path]:
    paths = []
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        paths.append(file)
    return paths
