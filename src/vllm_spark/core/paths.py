"""Folders of the toolkit, and of the site that uses it.

ROOT is a checkout or the collection. A wheel has the collection beside the package; ansible-galaxy puts the package
into the collection. The files of a site are never in an installed collection: they are in the working directory, or in
$VLLM_SPARK_SITE.
"""

from __future__ import annotations

import os
from pathlib import Path

# The folder that Python imports the package from.
SOURCE = Path(__file__).resolve().parents[2]
_IN_WHEEL = SOURCE / "ansible_collections" / "vllm_spark" / "toolkit"
ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else SOURCE.parent
IS_INSTALLED = ROOT.parents[1].name == "ansible_collections"
# The folder that Python imports ansible_collections from.
COLLECTIONS = ROOT.parents[2] if IS_INSTALLED else ROOT / "collections"
RECIPES = ROOT / "recipes"
NODE = SOURCE / "vllm_spark" / "node"
TEMPLATES = ROOT / "templates"
RUNBOOKS = ROOT / "docs" / "runbooks"

SITE = Path(os.path.abspath(os.environ.get("VLLM_SPARK_SITE") or (Path.cwd() if IS_INSTALLED else ROOT)))
INVENTORY = SITE / "inventories" / "site"
REPORTS = SITE / "reports"


def in_site(name: str) -> str:
    """Return the path of a file or folder of the site."""
    return str(SITE / name)
