"""Readings of the CPUs of the host: what processes beside the engine and this one use, and how long tasks wait."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vllm_spark.node.bench.records import Sample

TICKS_PER_S = 100.0  # USER_HZ, the unit of /proc/stat and /proc/PID/stat on every architecture of Linux (proc(5))
# The fields of the line `cpu` of /proc/stat; what guests use is part of the first two.
FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
WAITED = re.compile(r"^some .*total=(\d+)", re.MULTILINE)  # microseconds (Documentation/accounting/psi.rst)
DOCKER_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Times since the start of the host. `total` and `busy` are of all CPUs and `engine` is by process, in ticks; None:
    unknown. `own` and `waited` are in seconds."""

    at: float
    total: int | None = None
    busy: int = 0
    engine: dict[str, int] | None = None
    own: float = 0.0
    waited: float | None = None


def container_id(name: str) -> str:
    """Return the id of a running container; empty without one."""
    words = ["docker", "inspect", "--format={{.Id}}", name]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=DOCKER_LIMIT_S).stdout.strip()
    return ""


@dataclass(slots=True)
class HostCpu:
    """Reads /proc. Each reading has what was used since the one before it.

    `container` is that of the engine; without it nobody knows which load is foreign. `find` returns the id of a
    container, which is part of the control group of each of its processes.
    """

    container: str = ""
    proc: Path = Path("/proc")
    find: Callable[[str], str] = container_id
    own: Callable[[], float] = time.process_time
    clock: Callable[[], float] = time.monotonic
    _id: str = ""
    _inside: dict[str, bool] = field(default_factory=dict)  # whether a process is the engine's
    _before: Reading | None = None

    def __post_init__(self) -> None:
        self._before = self._reading()

    def read(self) -> Sample:
        """Return foreign_cpu and cpu_wait since the last reading, as far as they are known."""
        before, now = self._before, self._reading()
        self._before = now
        sample: Sample = {}
        if before is None:
            return sample
        foreign = _foreign(before, now)
        if foreign is not None:
            sample["foreign_cpu"] = foreign
        if before.waited is not None and now.waited is not None and now.at > before.at:
            sample["cpu_wait"] = _share((now.waited - before.waited) / (now.at - before.at))
        return sample

    def _reading(self) -> Reading:
        at, own = self.clock(), self.own()
        waited = WAITED.search(self._text("pressure/cpu"))
        seconds = int(waited[1]) / 1e6 if waited else None
        words = self._text("stat").partition("\n")[0].split()[1 : len(FIELDS) + 1]
        if len(words) < len(FIELDS):
            return Reading(at, own=own, waited=seconds)
        ticks = dict(zip(FIELDS, map(int, words), strict=True))
        total = sum(ticks.values())
        return Reading(at, total, total - ticks["idle"] - ticks["iowait"], self._engine(), own, seconds)

    def _engine(self) -> dict[str, int] | None:
        """Return the ticks of the engine's processes. Looks for its container again if that has no process."""
        if not self.container:
            return None
        found = self._ticks() if self._id else {}
        if not found:
            self._id = self.find(self.container)
            self._inside.clear()
            found = self._ticks() if self._id else {}
        return found or None

    def _ticks(self) -> dict[str, int]:
        running = {entry.name for entry in self.proc.iterdir() if entry.name.isdecimal()}
        for gone in self._inside.keys() - running:
            del self._inside[gone]
        for new in running - self._inside.keys():
            self._inside[new] = self._id in self._text(f"{new}/cgroup")
        found = {}
        for process in (name for name, inside in self._inside.items() if inside):
            # After the name in brackets, which may have blanks: the 14th and 15th field, utime and stime.
            words = self._text(f"{process}/stat").rpartition(")")[2].split()
            if words:
                found[process] = int(words[11]) + int(words[12])
        return found

    def _text(self, name: str) -> str:
        try:
            return (self.proc / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def _foreign(before: Reading, now: Reading) -> float | None:
    """Return the share of all CPUs that others used between two readings; None if it is unknown."""
    if before.total is None or now.total is None or before.engine is None or now.engine is None:
        return None
    known = sum(ticks - before.engine.get(process, 0) for process, ticks in now.engine.items())
    known_ticks = known + (now.own - before.own) * TICKS_PER_S
    passed = now.total - before.total
    return _share((now.busy - before.busy - known_ticks) / passed) if passed > 0 else None


def _share(value: float) -> float:
    return round(min(max(value, 0.0), 1.0), 3)
