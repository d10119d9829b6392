"""Whether a deployment may start on this Spark, and which others give way to it. Standard library alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.node import edge_admin, lease, unit_limits
from vllm_spark.node.deployment_state import Places, present


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


def refusal(name: str, known: Sequence[str], places: Places) -> str:
    """Return why vllm-switch must not start a deployment; empty if it may. `known`: those of this Spark."""
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else "a deployment; nothing was deployed here"
        return (
            f"{name} is not on this Spark — expected: {expected}. "
            f"Fix: vllm-spark switch -e to={name}. It places it. See docs/runbooks/switch-refused.md"
        )
    if lent := lease.of(name, places):
        return (
            f"{name} is lent: {present(name, places)['why'] or lent.why} — expected: a deployment that "
            f"is not lent. Fix: vllm-spark lend {lent.spark} --end. See docs/runbooks/lease.md"
        )
    return ""
