"""Who holds a port or the memory of a Spark, and the commands that stop him and bring him back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.core.units import GIB

# How the two kinds of owners are stopped and started again.
COMMANDS = {"container": "docker", "unit": "systemctl"}


def owner(holder: Mapping[str, Any]) -> tuple[str, str]:
    """Return (container, unit or process; its name).

    A process of a user session is its own owner, because its unit is the whole session."""
    unit = str(holder.get("unit") or "")
    if holder.get("container"):
        return "container", str(holder["container"])
    if unit and not unit.startswith(("user@", "session-")):
        return "unit", unit
    return "process", str(holder["process"])


def how_to_stop(kind: str, name: str, host: str, pids: str) -> str:
    """Return the command that stops an owner, and the one that brings it back. The toolkit stops nothing of it."""
    if program := COMMANDS.get(kind):
        removed = ", or its own start line if it was started with --rm" if kind == "container" else ""
        start = f"`ssh -t {host} sudo {program} start {name}` brings it back{removed}"
        return f"`ssh -t {host} sudo {program} stop {name}`; {start}"
    end = f"`ssh -t {host} sudo kill {pids}`; the line that started it brings it back"
    return f"end it the way it was started (a notebook: shut its kernel down), or {end}"


def lease(host: str, size: int) -> str:
    """Return the command that lends a foreign process so many bytes of the Spark for a time (lifecycle/lending.py)."""
    return f"`vllm-spark lend {host} --gib {max(1, -(-size // GIB))} --hours 3` lends it that memory for a time"
