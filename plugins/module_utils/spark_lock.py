"""The operator lock of a Spark: one file that names the run which changes the Spark now. Standard library alone.

The file is below /run, so a reboot removes it. It outlives the process that wrote it. `Holder` is its content;
lifecycle/operator_lock.py describes the keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_object, read_text, write_file
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import HOLDER, typed

FOLDER, NAME = layout.RUN_DIR, layout.LOCK
Holder = dict[str, Any]


def this_run(pid: int) -> Holder:
    """Return the holder for the run whose main process has this id."""
    user, controller, start, where = getpass.getuser(), socket.gethostname(), process(pid).started, machine()
    run = f"{controller}:{where}:{pid}:{start}"
    return {"run": run, "user": user, "controller": controller, "machine": where, "pid": pid, "started": start}


def machine() -> str:
    """Return what two processes that can see each other have in common; empty if the system does not report it."""
    boot = read_text("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return f"{boot.strip()}:{os.readlink('/proc/self/ns/pid')}" if boot else ""
    return ""


def lives(holder: Holder, mine: Holder, proc: str = "/proc") -> bool | None:
    """Return True if the run of a lock lives. None if that cannot be known, as for a run of another machine."""
    visible = all(holder.get(key) and holder[key] == mine[key] for key in ("machine", "controller"))
    if not visible or not holder.get("started"):
        return None
    return process(holder.get("pid", 0), proc).started == str(holder["started"])


def read_holder(folder: str = FOLDER, proc: str = "/proc") -> Holder | None:
    """Return the holder of the lock, with `age_s` and `connected`. None if the lock is free."""
    path = os.path.join(folder, NAME)
    try:
        written = os.lstat(path).st_mtime
    except FileNotFoundError:
        return None
    # A broken file is a lock too: a run wrote it.
    holder = typed(read_object(path), HOLDER)
    connection = holder.get("connection") or {}
    known = {"pid", "started"} <= connection.keys()
    connected = process(connection["pid"], proc).started == connection["started"] if known else None
    return {**holder, "age_s": max(0.0, time.time() - holder.get("since", written)), "connected": connected}


def take(
    holder: Holder, over: str | None = None, folder: str = FOLDER, proc: str = "/proc"
) -> tuple[bool, Holder | None]:
    """Take the lock for a run. Returns (True if the run has it now, the lock before or None).

    A run that has the lock already keeps it. The lock of another run is replaced only if `over` is that run's id."""
    with exclusive(folder):
        current = read_holder(folder, proc)
        owner = current.get("run", "") if current else over
        if owner == over:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            # A run on this host has no ssh connection but perhaps that of its owner, which outlives it.
            here = holder.get("started") and holder.get("machine") == machine()
            of_run = {"pid": holder["pid"], "started": holder["started"]} if here else connection(os.getpid(), proc)
            lock = {**holder, "since": time.time(), "connection": of_run}
            write_file(os.path.join(folder, NAME), json.dumps(lock), "0644")
        return owner in (over, holder["run"]), current


def give(run: str, folder: str = FOLDER, proc: str = "/proc") -> tuple[bool, Holder | None]:
    """Release the lock of a run. Returns (True if the run had it and it is free now, the lock of another run)."""
    with exclusive(folder):
        current = read_holder(folder, proc)
        if not current or current.get("run", "") != run:
            return False, current
        os.unlink(os.path.join(folder, NAME))
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # empty only on a Spark from which the toolkit was removed
    return True, None


@contextlib.contextmanager
def exclusive(folder: str) -> Iterator[None]:
    """Exclude other runs for a moment, by flock on the folder above, which none of them removes."""
    handle = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Process(NamedTuple):
    """A process: `started` is in the kernel's ticks and distinguishes it from a later one with its id; empty if it has
    ended."""

    name: str = ""
    parent: int = 0
    started: str = ""


def process(pid: int, proc: str = "/proc") -> Process:
    """Return what the kernel reports of a process id. The name may contain spaces and parentheses (proc(5))."""
    head, _, tail = (read_text(os.path.join(proc, str(pid), "stat")) or "").rpartition(")")
    fields = tail.split()
    if not fields or fields[0] in {"Z", "X"}:
        return Process()
    return Process(head.partition("(")[2], int(fields[1]), fields[19])


def connection(pid: int, proc: str = "/proc") -> dict[str, Any] | None:
    """Return pid and start of the sshd process that a process descends from. None if there is none."""
    while pid > 1:
        one = process(pid, proc)
        if one.name.startswith("sshd"):
            return {"pid": pid, "started": one.started}
        pid = one.parent
    return None
