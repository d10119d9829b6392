"""Sites whose figures are recorded: one for all tests that only ask, and one for each test that disturbs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_site import Site


def started(folder: Path) -> Iterator[Site]:
    recorded = Site(folder)
    with recorded.stack:
        recorded.start()
        yield recorded


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from started(tmp_path)


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that gave up: a trouble that nothing ends, so that every figure of a page is there."""
    for recorded in started(tmp_path_factory.mktemp("site")):
        recorded.state("gave up")
        yield recorded
