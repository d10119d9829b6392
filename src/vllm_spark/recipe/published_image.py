"""Images that somebody publishes and that are not a release of vLLM. Pure.

`image.published` of a recipe names who builds the image, what differs from a release, and what cannot be verified.
"""

from __future__ import annotations

from vllm_spark.core.types import Document

LABEL = "published image, not vLLM's"


def is_published(recipe: Document) -> bool:
    """Return True for a recipe whose image is not a release of vLLM."""
    return "published" in recipe["image"]


def engine(recipe: Document) -> str:
    """Return the engine as tables name it: its version, or the owner of the image."""
    owner = recipe["image"]["repository"].rpartition("/")[0].rpartition("/")[2]
    return f"{owner}'s image" if is_published(recipe) else str(recipe["engine"]["version"])
