"""Fixtures of the unit tests: the test recipes, a healthy host's facts, and the resolved spec of a deployment."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark.inventory import spec

DATA = Path(__file__).parents[1] / "data"

RECIPE_FOLDERS = (DATA / "recipes", paths.RECIPES)


@pytest.fixture
def facts() -> dict[str, Any]:
    """Facts of a healthy host."""
    return json.loads((DATA / "facts" / "spark.json").read_text())


@pytest.fixture
def resolve() -> Callable[..., spec.Spec]:
    """A function that resolves a deployment on spark1. Its keyword arguments are fields of the deployment."""

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
    """Import a module of plugins/modules the way Ansible does."""
    spec_of_file = importlib.util.spec_from_file_location(name, paths.ROOT / "plugins" / "modules" / f"{name}.py")
    assert spec_of_file is not None
    assert spec_of_file.loader is not None
    module = importlib.util.module_from_spec(spec_of_file)
    spec_of_file.loader.exec_module(module)
    return module
