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
# What Ansible does not read as a source of hosts in the folder of an inventory (ansible.cfg, and its own rule).
NO_SOURCES = {"lock.yml", "constants.yml", "allowed_signers", "recipes", "edge", "group_vars", "host_vars"}


def in_site(name: str) -> str:
    """Return the path of a file or folder of the site."""
    return str(SITE / name)


def sources(inventory: Path) -> list[Path]:
    """Return what Ansible reads for hosts in the folder of an inventory, by name."""
    found = inventory.iterdir() if inventory.is_dir() else ()
    return sorted(each for each in found if each.name not in NO_SOURCES and not each.name.startswith("."))
