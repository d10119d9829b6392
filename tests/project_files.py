"""The folders of the test data and of the recipes, and the import of an Ansible module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from vllm_spark.core import paths

DATA = Path(__file__).parent / "data"

RECIPE_FOLDERS = (DATA / "recipes", paths.RECIPES)


def load_module(name: str) -> ModuleType:
    """Import a module of plugins/modules as Ansible does."""
    spec_of_file = importlib.util.spec_from_file_location(name, paths.ROOT / "plugins" / "modules" / f"{name}.py")
    assert spec_of_file is not None
    assert spec_of_file.loader is not None
    module = importlib.util.module_from_spec(spec_of_file)
    spec_of_file.loader.exec_module(module)
    return module
