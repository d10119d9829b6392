#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Keeps deployments down while memory of a Spark is lent, and brings them back. Its timer starts it every minute.

lend                  bring back what was lent, if the lease has ended and the memory is free
lend --begin LEASE    note a lease, a JSON object (lease.py); vllm-switch stops its deployments after that
lend --end            end the lease of this Spark now
lend --await GIB      wait until so much memory is available, for AWAIT_S at the most

Each prints a JSON object. A lease that cannot be read counts as none: what it has kept down comes back.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, endings, host_layout, lease, state_writer, unit_limits  # noqa: E402  the path above leads to it
from vllm_spark.node.deployment_state import FAILED, GAVE_UP, LEASE_OVER, LENT, LOADING, PLACES, STOPPED, WANTED  # noqa: E402
from vllm_spark.node.lease import GIB, Lease  # noqa: E402
from vllm_spark.node.state_file import warn  # noqa: E402
from vllm_spark.node.state_writer import StateOf  # noqa: E402

# Unified memory comes back a while after its process has ended.
AWAIT_S, POLL_S = 60.0, 0.5
# nvidia-smi may hang.
NVIDIA_SMI_S = 10.0
# A server that will take its memory, and may not have all of it yet.
LOADS = (WANTED, LOADING, FAILED)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """A deployment of this Spark: its state, the memory that its start needs and that it takes, in bytes, and whether a
    boot starts it."""

    state: str
    needs: int
    takes: int
    starts: bool


def due(lent: Sequence[str], placed: Mapping[str, Placed], available: int) -> tuple[list[str], list[str], list[str]]:
    """Return which deployments come back now that their lease has ended, which wait for memory, and which stay stopped
    because no boot starts them. `available` is the memory in bytes; servers that still load take their part."""
    here = [name for name in lent if name in placed]
    free = available - sum(one.takes for one in placed.values() if one.state in LOADS)
    back: list[str] = []
    waiting: list[str] = []
    for name in (name for name in here if placed[name].starts):
        fits = placed[name].needs <= free
        (back if fits else waiting).append(name)
        free -= placed[name].takes if fits else 0
    return back, waiting, [name for name in here if not placed[name].starts]


def tick(now: float) -> Json:
    """Keep lent deployments down, or bring back those that fit after the end. Returns those that are `started`, and
    what is said of the others (`waits`), empty if none is left."""
    found, names = lease.read(PLACES), PLACES.deployments()
    if found and now < found.until:
        for name in set(found.lent) & set(names):
            StateOf(name, PLACES).write(LENT, found.why, after=(LENT, STOPPED, GAVE_UP))
        return {"started": [], "waits": ""}
    total, available = unit_limits.memory()
    placed = {name: deployment(name, total) for name in names}
    lent = found.lent if found else [name for name, one in placed.items() if one.state == LENT]
    if not found and os.path.exists(lease.file(PLACES)):
        warn(f"{lease.file(PLACES)} is no lease, so it counts as none: what it has kept down comes back")
    back, waiting, stay = due(lent, placed, available)
    waits = ""
    for name in (*back, *stay):
        # Until it loads, a later look counts the memory that it will take.
        StateOf(name, PLACES).write(WANTED if name in back else STOPPED, LEASE_OVER, after=(LENT,))
    if waiting:
        ended = replace(found or Lease("this Spark", 0, now, "nobody", ()), lent=tuple(waiting))
        waits = ended.waits(sum(placed[name].needs for name in waiting), holder())
        for name in waiting:
            before = deployment_state.present(name, PLACES)["why"]
            if StateOf(name, PLACES).write(LENT, waits, after=(LENT, STOPPED, GAVE_UP))["why"] != before:
                warn(f"{name}: {waits}")
        if found:
            lease.write(ended, PLACES)
    else:
        Path(lease.file(PLACES)).unlink(missing_ok=True)
    if back:
        # A deploy during the lease may have changed units.
        endings.output_of("systemctl", "daemon-reload")
        endings.output_of("systemctl", "start", "--no-block", *(f"vllm@{name}.service" for name in back))
    if not waiting:
        endings.output_of("systemctl", "disable", "--now", host_layout.LEASE_TIMER)
    return {"started": back, "waits": waits}


def deployment(name: str, total: int) -> Placed:
    """Return a deployment of this Spark. `total` is its memory in bytes."""
    record = deployment_state.json_object(deployment_state.text(os.path.join(PLACES.config, name, "deployed.json")))
    room = record.get("room") or {}
    needs = unit_limits.needed(room, total)
    state = deployment_state.present(name, PLACES)["state"]
    return Placed(state, needs, needs - int(room.get("floor_bytes", 0)), PLACES.starts_with_boot(name))


def begin(wanted: Lease) -> Json:
    """Note a lease. From now on its deployments do not start."""
    lease.write(replace(wanted, by=state_writer.operator(PLACES) or wanted.by), PLACES)
    endings.output_of("systemctl", "daemon-reload")
    endings.output_of("systemctl", "enable", "--now", host_layout.LEASE_TIMER)
    return tick(time.time())


def end() -> Json:
    """End the lease now."""
    if found := lease.read(PLACES):
        lease.write(replace(found, until=time.time()), PLACES)
    return tick(time.time())


def wait_for(size: float) -> Json:
    """Wait until so many bytes are available. Returns how many are, and who holds most of the rest."""
    deadline = time.monotonic() + AWAIT_S
    while (available := unit_limits.memory()[1]) < size and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return {"available": available, "holder": "" if available >= size else holder()}


def holder() -> str:
    """Return which process holds the most memory, of the host and of the GPU together, beside the toolkit's servers;
    empty if none holds a GiB. A GB10 reports the GPU's part by nvidia-smi alone."""
    ids = endings.output_of("docker", "ps", "--quiet", "--no-trunc", f"--filter=label={host_layout.DEPLOYMENT_LABEL}")
    held = on_gpu()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if resident := re.search(r"^VmRSS:\s+(\d+) kB", (folder / "status").read_text(errors="replace"), re.M):
                held[folder.name] = held.get(folder.name, 0) + (int(resident[1]) << 10)
    for pid, size in sorted(held.items(), key=lambda one: -one[1]):
        with suppress(OSError):
            group = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
            if size >= GIB and not any(one in group for one in ids.split()):
                return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid}) holds {size / GIB:.0f} GiB"
    return ""


def on_gpu() -> dict[str, int]:
    """Return the bytes of GPU memory of each process that computes there, by its number."""
    argv = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    rows: list[list[str]] = []
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=NVIDIA_SMI_S).stdout
        rows = [line.split(", ") for line in told.splitlines()]
    return {row[0]: int(row[1]) << 20 for row in rows if len(row) > 1 and row[1].isdecimal()}


def main(argv: Sequence[str]) -> int:
    match argv:
        case []:
            told = tick(time.time())
        case ["--begin", text] if wanted := lease.parsed(deployment_state.json_object(text)):
            told = begin(wanted)
        case ["--end"]:
            told = end()
        case ["--await", gib]:
            told = wait_for(float(gib) * GIB)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
