"""Which deployments of a shared Spark give way to another one. Standard library alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.node import edge_admin, unit_limits


def give_way(
    name: str,
    stop: Sequence[str],
    running: Sequence[str],
    rooms: Mapping[str, Mapping[str, Any]],
    memory: tuple[int, int],
) -> list[str]:
    """Return which of the `running` neighbours of `name` stop as well, the least recently used first: none if the
    memory that `stop` leaves is enough for it, or if that of all would not be. `rooms` are those of the records, and
    `memory` is (total, available) in bytes."""
    total, available = memory
    held = {other: unit_limits.needed(room, total) - room.get("floor_bytes", 0) for other, room in rooms.items()}
    lacks = unit_limits.needed(rooms[name], total) - available - sum(held[other] for other in stop)
    chosen = []
    for other in sorted(running, key=edge_admin.idle_s, reverse=True):
        if lacks > 0:
            chosen.append(other)
            lacks -= held[other]
    return [] if lacks > 0 else chosen
