"""The start limit of a pair. The head counts it for both ranks."""

from __future__ import annotations

import time

from vllm_spark.node.supervise import host
from vllm_spark.node.supervise.host import Message
from vllm_spark.node.supervise.rank import Rank
from vllm_spark.node.unit_limits import MAX_STARTS, WITHIN_S


def start_times(past: Message, restarts: int, now: float) -> Message:
    """Return lives.json for this start: the times of the starts within the last hour.

    `restarts` is systemd's count of its own restarts of the unit. If it did not increase by one, a person or a deploy
    started the unit, and the count begins at one.
    """
    restarted = restarts == past.get("restarts", -1) + 1
    times = [at for at in past.get("times", []) if now - at < WITHIN_S] if restarted else []
    return {"restarts": restarts, "times": [*times, now]}


async def is_last_attempt(rank: Rank) -> bool:
    """Record this start in lives.json. Returns True if the pair gives up when this attempt ends."""
    restarts = await host.output_of("systemctl", "show", "--property", "NRestarts", "--value", f"vllm@{rank.name}")
    file = rank.run_dir / "lives.json"
    starts = start_times(host.read(file), int(restarts or 0), time.time())
    host.write(file, starts)
    return len(starts["times"]) >= MAX_STARTS


async def reset_starts(rank: Rank) -> None:
    """Forget the starts so far: in lives.json, and in systemd, which has the same limit."""
    host.write(rank.run_dir / "lives.json", {"restarts": 0, "times": []})
    await host.run_quietly("systemctl", "reset-failed", f"vllm@{rank.name}")
