"""The turn to load on a Spark that several deployments share: one engine loads at a time. Standard library alone.

The turn is a lock of the kernel (flock), so the end of its holder gives it back, however it ends. Its file has the name
of the deployment that has it. What an engine counts while it loads is the memory of the whole Spark: memory that a
neighbour takes or gives back meanwhile is as harmful, so a stop waits for the turn too (node/take_turn.py).
"""

from __future__ import annotations

import fcntl
import os

from vllm_spark.node import deployment_state, unit_limits
from vllm_spark.node.deployment_state import Places

LOCK = "turn.lock"
POLL_S = 1.0
# The wait for the memory of the budget. An engine that was ended gives its memory back within seconds.
ROOM_S = 600.0
GIB = 1 << 30


class Turn:
    """The turn of one deployment on this Spark."""

    def __init__(self, name: str, places: Places) -> None:
        self._name, self._places = name, places
        self._handle = -1

    def take(self) -> str:
        """Take the turn. Returns the deployment that has it, empty if it is this one now."""
        if self._handle >= 0:
            return ""
        os.makedirs(self._places.run, mode=0o755, exist_ok=True)
        # Not inherited: a program that this one runs would keep the turn.
        handle = os.open(os.path.join(self._places.run, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode("utf-8", "replace")
            os.close(handle)
            return holder or "another deployment"
        os.ftruncate(handle, 0)
        os.pwrite(handle, self._name.encode(), 0)
        self._handle = handle
        return ""

    def give(self) -> None:
        """Give the turn back, if this deployment has it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def lacks(self) -> str:
        """Return what the memory of this Spark lacks for the start; empty if the budget is free."""
        record = deployment_state.text(os.path.join(self._places.config, self._name, "deployed.json"))
        total, available = unit_limits.memory()
        needed = unit_limits.needed(deployment_state.json_object(record).get("room") or {}, total)
        if available >= needed:
            return ""
        return f"{available / GIB:.1f} GiB of memory are available, and {self._name} needs {needed / GIB:.1f}"


def overdue(lacking: str) -> str:
    """Return why a start ends that has waited ROOM_S for its memory."""
    return (
        f"{lacking}, {ROOM_S:.0f} s after its turn began — expected: the memory of its budget. "
        "Fix: ps axo rss,comm --sort -rss | head. See docs/runbooks/gpu-memory-held.md"
    )
