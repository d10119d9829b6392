"""Folders of recipes: the site's own, beside the inventory, and the catalogue."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_spark.core import paths


def of_site() -> Path:
    """Return the folder of the site's own recipes: `recipes` beside the inventory. It may not exist."""
    inventory = Path(os.environ.get("ANSIBLE_INVENTORY", "").partition(",")[0] or paths.INVENTORY)
    return (inventory.parent if inventory.is_file() else inventory) / "recipes"


def searched() -> tuple[Path, ...]:
    """Return the folders that a command searches, in the order in which the roles search them."""
    site = of_site()
    return (site, paths.RECIPES) if site.is_dir() else (paths.RECIPES,)
