"""The operator lock of a Spark: one file that names the run which changes the Spark now. Standard library alone.

The file is below /run, so a reboot removes it. Reads and writes happen under flock on the folder, so concurrent runs
are serialised. The lock outlives the process that wrote it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_object, write_file
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import HOLDER, typed

FOLDER = "/run/vllm-spark"
NAME = "operator.lock"
# The lock as lifecycle/operator_lock.py describes its holder.
Holder = dict[str, Any]


def read_holder(folder: str = FOLDER, proc: str = "/proc") -> Holder | None:
    """Return the holder of the lock, with `age_s` and `connected`. None if the lock is free."""
    path = os.path.join(folder, NAME)
    try:
        written = os.lstat(path).st_mtime
    except FileNotFoundError:
        return None
    # A broken file is a lock too: a run wrote it.
    holder = typed(read_object(path), HOLDER)
    age_s = max(0.0, time.time() - holder.get("since", written))
    connection = holder.get("connection") or {}
    known = {"pid", "started"} <= connection.keys()
    connected = started(connection["pid"], proc) == connection["started"] if known else None
    return {**holder, "age_s": age_s, "connected": connected}


def take(
    holder: Holder, over: str | None = None, folder: str = FOLDER, proc: str = "/proc"
) -> tuple[bool, Holder | None]:
    """Take the lock for a run. Returns (True if the run has it now, the lock before or None).

    A run that has the lock already keeps it. The lock of another run is replaced only if `over` is that run's id."""
    with exclusive(folder):
        current = read_holder(folder, proc)
        if current and current.get("run", "") == holder["run"]:
            return True, current
        if current and current.get("run", "") != over:
            return False, current
        lock = {**holder, "since": time.time(), "connection": connection(os.getpid(), proc)}
        write_file(os.path.join(folder, NAME), json.dumps(lock), "0644")
        return True, current


def give(run: str, folder: str = FOLDER, proc: str = "/proc") -> tuple[bool, Holder | None]:
    """Release the lock of a run. Returns (True if the run had it and it is free now, the lock of another run)."""
    if not os.path.isdir(folder):
        return False, None
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
    """Lock the folder. Another run may remove and create it during the wait; the new folder is the right one then."""
    while True:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not same(handle, folder):
                continue
            yield
            return
        finally:
            os.close(handle)


def same(handle: int, folder: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False


def connection(pid: int, proc: str = "/proc") -> dict[str, Any] | None:
    """Return pid and start of the sshd process that a process descends from. None if there is none."""
    while pid > 1:
        try:
            with open(os.path.join(proc, str(pid), "stat"), encoding="utf-8", errors="replace") as file:
                stat = file.read()
        except OSError:
            return None
        if stat[stat.find("(") + 1 :].startswith("sshd"):
            return {"pid": pid, "started": started(pid, proc)}
        pid = int(stat.rpartition(")")[2].split()[1])
    return None


def started(pid: int, proc: str = "/proc") -> str:
    """Return the start of a process in the kernel's ticks; empty if it does not exist."""
    try:
        with open(os.path.join(proc, str(pid), "stat"), encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""
