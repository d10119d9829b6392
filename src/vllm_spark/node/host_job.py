"""A job: a program that runs as a unit of systemd, and the files by which the controller knows of it. Standard library
alone. spark_host_job starts a job.

/run/vllm-spark/pull/JOB.request    0600, read once
/run/vllm-spark/pull/JOB.progress   rewritten while the job runs; each job has its own keys
/run/vllm-spark/pull/JOB.result     {"ok": true, …}, or {"ok": false, "reason": id, "detail": "…"}
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from vllm_spark.node import host_layout
from vllm_spark.node.state_file import replace_file

RUN_DIR = Path(os.environ.get("VLLM_SPARK_JOBS", host_layout.JOBS_DIR))


class JobEndedError(Exception):
    """A job that cannot continue. The controller knows the `reason`."""

    reason = "ended"


def reason_of(error: Exception) -> str:
    """Return the reason of an exception: its own, disk-full, os or ended."""
    if isinstance(error, OSError):
        return "disk-full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "os"
    return error.reason if isinstance(error, JobEndedError) else JobEndedError.reason


def run(job: str, work: Callable[[Any], Mapping[str, object]]) -> int:
    """Do the work of a job, which receives the request, and write the result. Returns the exit status."""
    file = RUN_DIR / f"{job}.request"
    request = json.loads(file.read_text(encoding="utf-8"))
    # It may contain a token, and is not needed any more.
    file.unlink()
    try:
        result: dict[str, object] = {"ok": True, **work(request)}
    except (JobEndedError, OSError, CalledProcessError) as error:
        name = "" if isinstance(error, JobEndedError) else f"{type(error).__name__}: "
        result = {"ok": False, "reason": reason_of(error), "detail": f"{name}{error}"}
    write(job, "result", result)
    return 0 if result["ok"] else 1


def write(job: str, ending: str, document: Mapping[str, object], *, durable: bool = True) -> None:
    """Replace a file of a job."""
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    replace_file(RUN_DIR / f"{job}.{ending}", text, durable=durable)
