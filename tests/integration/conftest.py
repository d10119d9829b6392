"""Mark every test of this folder `integration`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.model_copies import write_model

HERE = Path(__file__).parent


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """Return the hub cache of a head that has a model."""
    write_model(tmp_path / "head")
    return tmp_path / "head"


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """Return the hub cache of a worker, which does not exist yet."""
    return tmp_path / "worker"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker to the tests of this folder; `items` has the tests of every folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
