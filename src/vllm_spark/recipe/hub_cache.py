"""Folders of the Hugging Face hub cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HUB_IN_CONTAINER = "/hub"
CACHE_IN_CONTAINER = "/cache"


def hub_folder(repository: str) -> str:
    """The folder that huggingface_hub gives a repository inside its cache."""
    return "models--" + repository.replace("/", "--")


def snapshot(root: str, source: Mapping[str, Any]) -> str:
    """The folder of a model or drafter at its pinned commit, below a hub cache."""
    return f"{root}/{hub_folder(source['repository'])}/snapshots/{source['revision']}"
