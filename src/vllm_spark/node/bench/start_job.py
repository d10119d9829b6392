"""A start of a deployment as a job on its head. Starts the unit, requests a token until one comes, and reads the log.

    python3 -m vllm_spark.node.bench.start_job JOB

host_job.py describes the files of the job. The result has the log lines with their times; the
controller knows which line begins a phase.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, TypedDict

from vllm_spark.node import host_job
from vllm_spark.node.bench.host_memory import HostMemory
from vllm_spark.node.bench.job import endpoint
from vllm_spark.node.bench.records import Sample
from vllm_spark.node.bench.server import request as send
from vllm_spark.node.bench.stream import Endpoint

POLL_INTERVAL_S = 0.25
REQUEST_TIMEOUT_S = 30.0
# The part of a reply that is read: only its status counts.
MOST_BYTES = 1 << 20
# More than any start-up log has.
MOST_LINES = 20_000


class StartRequest(TypedDict):
    """The unit to start, and the server whose first token ends the start. `deadline_s` bounds the wait."""

    unit: str
    url: str
    model: str
    env_path: str
    deadline_s: float


class StartResult(TypedDict):
    """`seconds` from the start of the unit until its first token. `lines`: [seconds since the start, text].

    `memory_gib` is the host's memory in use at the highest sample, above that before the start; None if it is unknown.
    """

    ok: bool
    detail: str
    seconds: float
    memory_gib: float | None
    lines: list[tuple[float, str]]


def measure(request: StartRequest) -> StartResult:
    """Start the unit and wait for a token."""
    memory = HostMemory()
    in_use = [memory.read()]
    began, began_at = time.monotonic(), time.time()
    subprocess.run(["systemctl", "reset-failed", request["unit"]], check=False, capture_output=True)
    subprocess.run(["systemctl", "start", "--no-block", request["unit"]], check=True)
    server = endpoint(request["url"], request["env_path"])
    while not _answers(server, request["model"]):
        in_use.append(memory.read())
        if time.monotonic() - began > request["deadline_s"]:
            why = f"{request['unit']} gave no token within {request['deadline_s']:.0f} s"
            return {"ok": False, "detail": why, "seconds": 0.0, "memory_gib": None, "lines": []}
        time.sleep(POLL_INTERVAL_S)
    seconds = time.monotonic() - began
    in_use.append(memory.read())
    return {
        "ok": True,
        "detail": "",
        "seconds": round(seconds, 3),
        "memory_gib": grown_gib(in_use),
        "lines": _log(request["unit"], began_at),
    }


def grown_gib(samples: Sequence[Sample]) -> float | None:
    """Return the memory in use at the highest sample above that of the first one. None: the first one has none."""
    known = [sample["memory_gib"] for sample in samples if "memory_gib" in sample]
    return round(max(known) - known[0], 3) if known and "memory_gib" in samples[0] else None


def _answers(server: Endpoint, model: str) -> bool:
    body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1}).encode()
    try:
        status, _ = send(server, "/v1/completions", body, REQUEST_TIMEOUT_S, MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    return bool(status == http.HTTPStatus.OK)


def _log(unit: str, since: float) -> list[tuple[float, str]]:
    """Return the log of the unit since a time, each line with its seconds after it."""
    words = ["journalctl", "--quiet", "--no-pager", "--output=json", f"--lines={MOST_LINES}"]
    words += [f"--unit={unit}", f"--since=@{since:.0f}"]
    printed = subprocess.run(words, check=False, capture_output=True, text=True).stdout
    entries: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
    lines = [(int(entry["__REALTIME_TIMESTAMP"]) / 1e6 - since, entry.get("MESSAGE")) for entry in entries]
    # A message that is not UTF-8 is a list of bytes. No line that begins a phase is one.
    return [(round(at, 3), text) for at, text in lines if isinstance(text, str) and at >= 0]


if __name__ == "__main__":
    sys.exit(host_job.run(sys.argv[1], measure))
