"""Limits of vllm@.service that programs of the host count with. tests/unit/project/test_one_source.py compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEMINFO = Path("/proc/meminfo")

# After so many starts that failed, without one between them that has served for GOOD_S, a deployment stays down
# (starts.py).
MAX_STARTS = 5
# The start limit of systemd is higher, and is reached only by launches that end before their start: so many starts of
# the unit within WITHIN_S. Each end that is no failure resets it.
MAX_UNIT_STARTS = 10
WITHIN_S = 3600
TOO_MANY_FAILED = f"{MAX_STARTS} failed starts in a row"
LIMIT_REACHED = f"{MAX_UNIT_STARTS} starts of its unit within {WITHIN_S // 60} min"
# So many starts under which a Spark went down within WITHIN_S, and the deployment is not started at boot.
MAX_DEATHS = 2
# The first pause after an end from outside, and the longest; each is twice the one before.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0
# The exit status of `state starts` for a unit that is not to start, and of a supervisor of release 0.1.0 that gave up:
# EX_CONFIG of sysexits.h.
NO_RESTART = 78
# A server that ends within its first requests has a fault, and that counts against the start limit. A later end does
# not.
GOOD_S = 300.0
# The deadline of a start without one, as of an older toolkit.
READY_S = 900.0
# Seconds that `docker stop` leaves an engine. Half of a 0.20 engine's exits take longer than Docker's ten seconds: it
# joins its workers first. The unit leaves its programs some seconds more.
STOP_TIMEOUT_S, AFTER_STOP_S = 30, 15


def memory() -> tuple[int, int]:
    """Return (total, available) memory in bytes."""
    table = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return tuple(int(table[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]


def needed(room: Mapping[str, Any], total: int) -> int:
    """Return the bytes that must be available before a start (sizing/memory.py, requirement); 0 if the deployment has
    no such record. Release 0.1.0 has none of what a server takes beside its share."""
    if not room:
        return 0
    share = room["share"] * total + room.get("beside_bytes", 0)
    return int(max(share, room["bytes"]) + room["floor_bytes"])
