"""One file of a site's recipe, to share: the recipe with the architectures that it needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.core.refusal import register
from vllm_spark.core.types import Document
from vllm_spark.recipe import architecture
from vllm_spark.recipe.loader import Recipe

NEEDS_FILES = register("recipe-needs-files", runbook="recipe-new")

ARCHITECTURES = "architectures"


def shared(recipe: Recipe, written: Document) -> dict[str, Any]:
    """Return the document of the one file. `written` is the recipe's file as it is, before gates are expanded.

    Raises RefusedError for a recipe that needs files beside it.
    """
    if recipe.files:
        files = ", ".join(sorted(recipe.files))
        raise NEEDS_FILES.error(
            what=f"recipe {recipe.name} needs {files} beside it",
            expected="a recipe without patches and mounts of the toolkit",
            fix="share its folder, with these files.",
        )
    document = dict(written)
    own = {**document.get(ARCHITECTURES, {}), **recipe.document.get(ARCHITECTURES, {})}
    if own:
        document[ARCHITECTURES] = own
    return document


def parted(document: Document) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe of a shared file without its architectures, and those that the catalogue does not have."""
    brought = document.get(ARCHITECTURES)
    if not isinstance(brought, Mapping):
        # The check of the recipe names what is wrong with it.
        return dict(document), {}
    recipe = {key: value for key, value in document.items() if key != ARCHITECTURES}
    known = architecture.names()
    return recipe, {str(name): one for name, one in brought.items() if name not in known}
