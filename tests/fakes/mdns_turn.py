"""Turns at the group of mDNS: the tests of a machine share it, whichever worker, target or clone they run in."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(*, alone: bool) -> Iterator[None]:
    """Hold the group alone, to answer, or beside others, to ask where nobody may answer."""
    with (Path(tempfile.gettempdir()) / "vllm-spark-test-mdns.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
