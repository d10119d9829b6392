"""Folders of the Hugging Face hub cache."""

from __future__ import annotations

from vllm_spark.core.types import Document


def hub_folder(repository: str) -> str:
    """Return the name of a repository's folder in a hub cache, as huggingface_hub builds it."""
    return "models--" + repository.replace("/", "--")


def snapshot(root: str, source: Document) -> str:
    """Return the folder of a model or drafter at its pinned commit. `root` is the folder of the hub cache."""
    return f"{root}/{hub_folder(source['repository'])}/snapshots/{source['revision']}"
