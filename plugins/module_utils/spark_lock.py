"""The lock of a Spark: one file that says who changes it now. Standard library alone.

It lies below /run, so a reboot forgets it. Who looks and writes holds the folder by flock meanwhile, so of two that
come at once one sees the other's; the lock itself outlives the process that wrote it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time

FOLDER = "/run/vllm-spark"
NAME = "operator.lock"


def look(folder=FOLDER, proc="/proc"):
    """The lock as it is shown to others: the holder, age_s, connected. None where nobody holds it."""
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    try:
        holder = json.loads(text)
    except ValueError:
        holder = None
    if not isinstance(holder, dict):
        holder = {}  # held all the same: somebody wrote it
    since = holder.get("since", os.path.getmtime(os.path.join(folder, NAME)))
    connection = holder.get("connection")
    open_still = started(connection["pid"], proc) == connection["started"] if connection else None
    return {**holder, "age_s": max(0.0, time.time() - since), "connected": open_still}


def take(holder, over=None, folder=FOLDER, proc="/proc"):
    """(whether it is this run's now, the lock that was found or None). A lock of the same run is one's own; one of
    another run is replaced where `over` names that run, and not the next one's."""
    with exclusive(folder):
        found = look(folder, proc)
        if found and found.get("run", "") == holder["run"]:
            return True, found
        if found and found.get("run", "") != over:
            return False, found
        write(folder, {**holder, "since": time.time(), "connection": connection(os.getpid(), proc)})
        return True, found


def give(run, folder=FOLDER, proc="/proc"):
    """(whether it was this run's and is free now, the lock of somebody else or None)."""
    if not os.path.isdir(folder):
        return False, None
    with exclusive(folder):
        found = look(folder, proc)
        if not found or found.get("run", "") != run:
            return False, found
        os.unlink(os.path.join(folder, NAME))
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # where nothing else is in it: a Spark that the toolkit has left
    return True, None


@contextlib.contextmanager
def exclusive(folder):
    """Hold the folder. It may be removed while one waits for it, and made anew: then another one is the right one."""
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


def same(handle, folder):
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False


def write(folder, holder):
    """Whole or not at all: a reader must not see half of it."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{NAME}-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(holder, file)
    os.chmod(temporary, 0o644)
    os.replace(temporary, os.path.join(folder, NAME))


def connection(pid, proc="/proc"):
    """The process of sshd that this one came by: its pid and start. None where there is none."""
    while pid > 1:
        try:
            with open(os.path.join(proc, str(pid), "stat"), encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return None
        if text[text.find("(") + 1 :].startswith("sshd"):
            return {"pid": pid, "started": started(pid, proc)}
        pid = int(text.rpartition(")")[2].split()[1])
    return None


def started(pid, proc="/proc"):
    """When a process started, in the kernel's ticks; empty where there is none."""
    try:
        with open(os.path.join(proc, str(pid), "stat"), encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""
