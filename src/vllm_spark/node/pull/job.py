"""Run one job of a pull: read its request, write its progress, leave its result. Runs on the host.

    python3 -m vllm_spark.node.pull.run JOB MODULE FUNCTION

/run/vllm-spark/pull/JOB.request    0600, read once
/run/vllm-spark/pull/JOB.progress   {"phase", "done", "total", "seconds", "note"}, in bytes, rewritten every second
/run/vllm-spark/pull/JOB.result     {"ok": true, …}, or {"ok": false, "reason": id, "detail": "…"}
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypedDict

from vllm_spark.node.pull.files import TransferError, write_json

RUN_DIR = Path(os.environ.get("VLLM_SPARK_JOBS", "/run/vllm-spark/pull"))
WRITE_INTERVAL_S = 1.0
# The phase of a server whose port is open.
SERVING = "serving"


class JobError(TransferError):
    """A job that cannot continue, for a reason that its error does not imply."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def reason_of(error: Exception) -> str:
    """Return the reason of an exception, a key of REASONS in transfer/jobs.py or os, stopped or ended."""
    if isinstance(error, OSError):
        return "disk-full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "os"
    return error.reason if isinstance(error, TransferError) else "ended"


class ProgressJson(TypedDict, total=False):
    """Progress of a phase. `done` and `total` are bytes, `seconds` the time since the phase began.

    `manifests` are those that a server serves: FOLDER/COMMIT -> sha256.
    """

    phase: str
    done: int
    total: int
    note: str
    seconds: float
    manifests: Mapping[str, str]


@dataclass(slots=True)
class JobProgress:
    """Progress of a job. Any thread may add bytes."""

    phase: str = "starting"
    total: int = 0
    done: int = 0
    note: str = ""
    manifests: Mapping[str, str] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)
    lock: Lock = field(default_factory=Lock)

    def enter(self, phase: str, total: int, done: int = 0) -> None:
        """Start a phase of `total` bytes."""
        with self.lock:
            self.phase, self.total, self.done, self.started_at = phase, total, done, time.monotonic()

    def add(self, size: int) -> None:
        with self.lock:
            self.done += size

    def to_json(self) -> ProgressJson:
        with self.lock:
            seconds = round(time.monotonic() - self.started_at, 1)
            return {
                "phase": self.phase,
                "total": self.total,
                "done": self.done,
                "note": self.note,
                "manifests": self.manifests,
                "seconds": seconds,
            }


# The request is JSON of the controller; each function types its own.
JobFunction = Callable[[Any, JobProgress, Event], Mapping[str, object]]


def run(job: str, function: JobFunction) -> int:
    """Run a job and write its result. SIGTERM and SIGINT set the event. Returns the exit status."""
    request_file = RUN_DIR / f"{job}.request"
    request = json.loads(request_file.read_text(encoding="utf-8"))
    # It may contain a token, and is not needed any more.
    request_file.unlink()
    progress, stop = JobProgress(), Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def write_progress() -> None:
        write_json(RUN_DIR / f"{job}.progress", progress.to_json(), durable=False)

    write_progress()
    try:
        with repeated(write_progress, WRITE_INTERVAL_S):
            result: dict[str, object] = {"ok": True, **function(request, progress, stop)}
    except (TransferError, OSError) as error:
        name = f"{type(error).__name__}: " if isinstance(error, OSError) else ""
        result = {"ok": False, "reason": reason_of(error), "detail": f"{name}{error}"}
    finally:
        write_progress()
    write_json(RUN_DIR / f"{job}.result", result)
    return 0 if result["ok"] else 1


@contextmanager
def repeated(action: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Do something at intervals, in a thread, while the context is open."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(interval_s):
            action()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
