"""What every long program on a box has in common: its request, its progress, its result. Runs on the box.

/run/vllm-spark/pull/JOB.request    0600, read once
/run/vllm-spark/pull/JOB.progress   {"phase", "done", "total", "seconds", "note"}, bytes, written anew every second
/run/vllm-spark/pull/JOB.result     {"ok": true, …}, or {"ok": false, "reason": id, "said": "…", …}
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from vllm_spark.node.pull.hub_cache import ManifestError, StoppedError, place

RUN_DIR = Path(os.environ.get("VLLM_SPARK_JOBS", "/run/vllm-spark/pull"))
LOG_INTERVAL_S = 1.0


class JobError(Exception):
    """A job that cannot go on. `reason` is an id that the controller knows the fix of."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


@dataclass(slots=True)
class JobProgress:
    """How far a job is. Bytes may be added from any thread."""

    phase: str = "starting"
    total: int = 0
    done: int = 0
    note: str = ""
    began: float = field(default_factory=time.monotonic)
    lock: Lock = field(default_factory=Lock)

    def enter(self, phase: str, total: int, done: int = 0) -> None:
        with self.lock:
            self.phase, self.total, self.done, self.began = phase, total, done, time.monotonic()

    def add(self, size: int) -> None:
        with self.lock:
            self.done += size

    def to_json(self) -> dict[str, Any]:
        with self.lock:
            shown = {"phase": self.phase, "total": self.total, "done": self.done, "note": self.note}
        return shown | {"seconds": round(time.monotonic() - self.began, 1)}


def run(job: str, work: Callable[[Mapping[str, Any], JobProgress, Event], Mapping[str, Any]]) -> int:
    """Read the request, do the work while progress is written, leave the result. `work` gets an event that is set when
    the job is told to end. Returns the exit status."""
    request_file = RUN_DIR / f"{job}.request"
    request = json.loads(request_file.read_text(encoding="utf-8"))
    # It may hold a token, and is of no more use.
    request_file.unlink()
    progress, stop, over = JobProgress(), Event(), Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    teller = Thread(target=_tell, args=(RUN_DIR / f"{job}.progress", progress, over), daemon=True)
    teller.start()
    try:
        result: dict[str, Any] = {"ok": True, **work(request, progress, stop)}
    except JobError as error:
        result = {"ok": False, "reason": error.reason, "said": str(error)}
    except StoppedError as error:
        result = {"ok": False, "reason": "stopped", "said": str(error)}
    except ManifestError as error:
        result = {"ok": False, "reason": "no-manifest", "said": str(error)}
    except OSError as error:
        result = {"ok": False, "reason": "os", "said": f"{type(error).__name__}: {error}"}
    finally:
        over.set()
        teller.join()
    place(RUN_DIR / f"{job}.result", result)
    return 0 if result["ok"] else 1


def _tell(file: Path, progress: JobProgress, over: Event) -> None:
    while True:
        place(file, progress.to_json())
        if over.wait(LOG_INTERVAL_S):
            place(file, progress.to_json())
            return
