"""Waiting in tests: for a condition, with a limit that a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable

# Much longer than any test waits on an idle machine. A test that passes never waits for it.
LIMIT_S = 60.0


def until(condition: Callable[[], object], seconds: float = LIMIT_S) -> None:
    """Wait for a condition. Fails the test if it does not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
