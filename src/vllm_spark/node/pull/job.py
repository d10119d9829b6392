"""The jobs of a pull: their progress and their errors. Runs on the host.

    python3 -m vllm_spark.node.pull.run JOB MODULE FUNCTION

The progress has {"phase", "done", "total", "seconds", "note"}, in bytes, and is rewritten every second.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, TypedDict

from vllm_spark.node import host_job
from vllm_spark.node.host_job import JobEndedError

WRITE_INTERVAL_S = 1.0
# The phase of a server whose port is open.
SERVING = "serving"


class JobError(JobEndedError):
    """A job that cannot continue. `reason` is a key of REASONS in transfer/jobs.py."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


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
    """Run a job. SIGTERM and SIGINT set the event. Returns the exit status."""
    progress, stop = JobProgress(), Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def write_progress() -> None:
        host_job.write(job, "progress", {**progress.to_json()}, durable=False)

    def work(request: Any) -> Mapping[str, object]:
        write_progress()
        try:
            with repeated(write_progress, WRITE_INTERVAL_S):
                return function(request, progress, stop)
        finally:
            write_progress()

    return host_job.run(job, work)


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
