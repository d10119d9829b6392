"""Mark every test of this folder `integration`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker to the tests of this folder; `items` has the tests of every folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
