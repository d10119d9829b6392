"""Shared by the unit tests: the test recipes, a healthy Spark's facts, and the resolved spec of a deployment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vllm_spark import paths, spec

DATA = Path(__file__).parents[1] / "data"
RECIPE_FOLDERS = (DATA / "recipes", paths.RECIPES)


@pytest.fixture
def facts() -> dict[str, Any]:
    """Facts of a Spark that nothing is wrong with."""
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
        found = spec.resolve(inventory, "spark1")
        assert found is not None
        return found

    return _resolve
