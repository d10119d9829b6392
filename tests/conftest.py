"""Shared fixtures: facts of a healthy host, and the resolved spec of a deployment."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import project_files
from fakes import derived_hub
from vllm_spark.cli.recipe import new
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.inventory import spec
from vllm_spark.pinning.hub import Hub
from vllm_spark.sizing import forecast
from waiting import LIMIT_S

# A shell ignores Ctrl-C for what it starts in the background, and the processes of a test would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A table is as wide as the terminal of this variable, which a test's process has only in parallel with others.
os.environ.pop("COLUMNS", None)

OWN_RECIPES = paths.RECIPES
_read_catalogue = forecast.catalogue
_own_catalogue = cache(lambda: _read_catalogue([OWN_RECIPES]))


def catalogue(folders: Sequence[Path], near: Document | None = None) -> tuple[Document, ...]:
    """Read the recipes of the toolkit, which no test changes, once a session instead of once a command."""
    return _own_catalogue() if list(folders) == [OWN_RECIPES] else _read_catalogue(folders, near)


forecast.catalogue = catalogue


@pytest.fixture
def facts() -> dict[str, Any]:
    """Facts of a healthy host."""
    return json.loads((project_files.DATA / "facts" / "spark.json").read_text())


@pytest.fixture
def resolve() -> Callable[..., spec.Spec]:
    """A function that resolves an open deployment on spark1. Its keyword arguments are fields of the deployment."""

    def _resolve(secrets: Mapping[str, bool] | None = None, lock: Path | None = None, **fields: Any) -> spec.Spec:
        deployment = {"name": "demo", "recipe": "everything", "hosts": ["spark1"], **fields}
        inventory = spec.Inventory(
            deployments=[deployment],
            sparks=("spark1", "spark2"),
            limit=("spark1",),
            recipe_folders=project_files.RECIPE_FOLDERS,
            lock_file=lock,
            secrets={"HF_TOKEN": True} if secrets is None else secrets,
            edge={"open": True},
        )
        resolved = spec.resolve(inventory, "spark1")
        assert resolved is not None
        return resolved

    return _resolve


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[derived_hub.Hub]:
    """A stand-in for the hub, which `recipe new` asks."""
    # Proxies of the environment would get the requests of the loopback device.
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with derived_hub.serving() as served:
        monkeypatch.setattr(new, "Hub", lambda: Hub(endpoint=served.url, token="", deadline_s=LIMIT_S))
        yield served
