"""Fixtures of the unit tests: test recipes, facts of a healthy Spark, the resolved spec of a deployment, modules."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import ansible.module_utils
import pytest

from vllm_spark.core import paths
from vllm_spark.inventory import spec

DATA = Path(__file__).parents[1] / "data"
# ansible.cfg has this folder as module_utils.
ansible.module_utils.__path__.append(str(paths.ROOT / "plugins" / "module_utils"))

RECIPE_FOLDERS = (DATA / "recipes", paths.RECIPES)


@pytest.fixture
def facts() -> dict[str, Any]:
    """Return the facts of a healthy Spark."""
    return json.loads((DATA / "facts" / "spark.json").read_text())


@pytest.fixture
def resolve() -> Callable[..., spec.Spec]:
    """Resolve one deployment on spark1; keyword arguments are its fields or the inventory's."""

    def _resolve(secrets: Mapping[str, bool] | None = None, lock: Path | None = None, **fields: Any) -> spec.Spec:
        deployment = {"name": "demo", "recipe": "everything", "hosts": ["spark1"], **fields}
        inventory = spec.Inventory(
            deployments=[deployment],
            sparks=("spark1", "spark2"),
            limit=("spark1",),
            recipe_folders=RECIPE_FOLDERS,
            lock_file=lock,
            secrets={"HF_TOKEN": True} if secrets is None else secrets,
        )
        resolved = spec.resolve(inventory, "spark1")
        assert resolved is not None
        return resolved

    return _resolve


def load_module(name: str) -> ModuleType:
    """Import a module of plugins/modules, with module_utils as Ansible finds them."""
    spec_of_file = importlib.util.spec_from_file_location(name, paths.ROOT / "plugins" / "modules" / f"{name}.py")
    assert spec_of_file is not None
    assert spec_of_file.loader is not None
    module = importlib.util.module_from_spec(spec_of_file)
    spec_of_file.loader.exec_module(module)
    return module
