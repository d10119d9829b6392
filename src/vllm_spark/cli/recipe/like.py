"""The option --like: a recipe of a site whose image and engine a new recipe takes over."""

from __future__ import annotations

from vllm_spark.authoring import engine_choice
from vllm_spark.cli import arguments
from vllm_spark.core.types import Document
from vllm_spark.sizing import tensor_parallel


def base(name: str | None, nodes: int = 0) -> Document | None:
    """Return what a new recipe takes over from the recipe of this name or file, or None without a name. `nodes` are its
    Sparks, if they are known: a peak of loading was measured on one number of them."""
    if not name:
        return None
    document = arguments.load_recipe(name)[0].document
    if nodes not in {0, document["topology"]["nodes"]}:
        document = tensor_parallel.on_ranks(document, nodes, nodes)
    return {key: document[key] for key in engine_choice.OF_A_SITE if key in document}
