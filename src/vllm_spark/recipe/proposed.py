"""Recipes that the toolkit proposes by itself. Pure."""

from __future__ import annotations

from vllm_spark.core.types import Document
from vllm_spark.node.engine_api import CHAT
from vllm_spark.recipe import published_image, roles


def is_proposed(recipe: Document) -> bool:
    """Return False for a recipe that an owner chooses by its name: its image is not vLLM's, or it is kept for a report
    whose system another recipe beats today, or its role is another one than chat."""
    return not published_image.is_published(recipe) and "kept_for" not in recipe and roles.of(recipe) == CHAT
