"""The option --like: a recipe of a site whose image and engine a new recipe takes over."""

from __future__ import annotations

from vllm_spark.authoring import engine_choice
from vllm_spark.cli import arguments
from vllm_spark.core.types import Document
from vllm_spark.sizing import tensor_parallel


def base(name: str | None) -> Document | None:
    """Return what a new recipe takes over from the recipe of this name or file, or None without a name."""
    if not name:
        return None
    # A peak of loading was measured on another model, or on another number of Sparks.
    document = tensor_parallel.on_ranks(arguments.load_recipe(name)[0].document, 1, 1)
    return {key: document[key] for key in engine_choice.OF_A_SITE if key in document}
