"""The bench as a job on the head: reads its request, measures, and leaves its evidence. Runs as a unit of systemd.

    python3 -m vllm_spark.node.bench.job JOB

host_job.py describes its files. The progress is a ProgressJson, rewritten at most once a second. The result has the
number of cells that `failed`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypedDict

from vllm_spark.node import engine_api, host_job
from vllm_spark.node.bench import corpus, evidence_file, pooled
from vllm_spark.node.bench.cell_run import Messages
from vllm_spark.node.bench.records import Cell, CellRecord, RunRecord, Sample
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.runner import Progress, Runner
from vllm_spark.node.bench.server import Server
from vllm_spark.node.bench.stream import Endpoint
from vllm_spark.node.bench.telemetry import Sampler

WRITE_INTERVAL_S = 1.0
# More cells than end between two reads of the progress.
RECENT = 20
SEED = 15
# The prompts of a warm-up are others than those of the measured runs.
WARM_UP_INDEX = 1_000_000


class JobRequest(TypedDict):
    """What to measure. `env_path` is the env file of the deployment, which has the API key; empty without one."""

    url: str
    model: str
    env_path: str
    host: str  # name of this host in the samples
    container: str  # of the engine on this host
    path: str  # the evidence file; an interrupted run continues in it, also one that has ended meanwhile
    run: RunRecord
    cells: list[Cell]
    rules: dict[str, Any]
    accepted: list[str]
    ends: bool  # no other cells of this run follow


class ProgressJson(TypedDict):
    """The progress of a job. `ended` has the cells that ended last, without samples, at most RECENT. `note`: what the
    evidence file had before this job."""

    cell: str
    done: int
    cells: int
    run: int
    rate: float
    left_s: float | None
    failed: int
    ended: list[CellRecord]
    note: str


def prompts(server: Server, salt: str) -> Callable[[Cell, int, int], Messages]:
    """Return the function that makes the messages of (cell, run, stream). `salt` must differ from run to run."""

    def messages(cell: Cell, run: int, stream: int) -> Messages:
        number = run if run >= 0 else WARM_UP_INDEX - run
        # Each document of a cell is a prompt.
        each = cell["streams"] * (pooled.REQUESTS * cell["documents"] if "documents" in cell else 1)
        index = number * each + stream
        return corpus.prompt(
            cell["corpus"], SEED, index, cell["prompt"], cell["depth"], server.count_tokens, f"{salt}/{cell['id']}"
        )

    return messages


def measure(request: JobRequest, report: Callable[[Progress], None]) -> Progress:
    """Measure the cells of a request on this host. Raises ServerError."""
    server = Server.connect(endpoint(request["url"], request["env_path"]), request["model"])
    with Sampler(time.perf_counter(), clock=time.perf_counter, container=request["container"]) as sampler:

        def samples(begin: float, zero: float) -> dict[str, list[Sample]]:
            return {request["host"]: sampler.since(begin, zero)}

        runner = Runner(
            server,
            Rules(**request["rules"]),
            prompt=prompts(server, request["run"]["id"]),
            samples=samples,
            report=report,
            gpus={request["host"]: sampler.gpu},
            accepted=request["accepted"],
        )
        path = Path(request["path"])
        record = with_gpu(request["run"], request["host"], sampler.gpu)
        try:
            return runner.run(record, request["cells"], path, ends=request["ends"])
        except evidence_file.OtherRunError as error:
            # The deployment has changed since that run was interrupted.
            old = path.replace(path.with_suffix(".old.jsonl"))
            note = f"{error}: it is kept as {old}, and every cell is measured"
            return runner.run(record, request["cells"], path, ends=request["ends"], note=note)


def with_gpu(run: RunRecord, host: str, gpu: str) -> RunRecord:
    """Return a run record with a host's GPU, driver and system among its facts. What is unknown is left out."""
    seen = {"gpu": gpu, "driver": _first("/proc/driver/nvidia/version", r" (\d+\.\d+\S*) "), **_system()}
    facts = {**run["host"].get(host, {}), **{name: value for name, value in seen.items() if value}}
    return {**run, "host": {**run["host"], host: facts}} if facts else run


def _system() -> dict[str, str]:
    """Return the name and version of the system: of DGX OS, or of the distribution."""
    release = _first("/etc/dgx-release", r'DGX_(?:OTA|SWBUILD)_VERSION="?([^"\n]+)')
    return {"os": f"DGX OS {release}" if release else _first("/etc/os-release", r'PRETTY_NAME="?([^"\n]+)')}


def _first(path: str, pattern: str) -> str:
    """Return the first group of a pattern in a file; empty without it."""
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


def run(job: str) -> int:
    """Run a job. Returns the exit status."""
    writer = _ProgressWriter(job)
    return host_job.run(job, lambda request: {"failed": measure(request, writer.write).failed})


class _ProgressWriter:
    """Writes the progress, at most once per interval, and always when a cell has ended."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._written_at = 0.0
        self._done = -1
        self._ended: list[CellRecord] = []

    def write(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.last and progress.done != self._done:
            ended: CellRecord = {**progress.last, "samples": {}}
            self._ended = [*self._ended, ended][-RECENT:]
        if progress.done == self._done and now - self._written_at < WRITE_INTERVAL_S:
            return
        self._written_at, self._done = now, progress.done
        host_job.write(self._job, "progress", {**progress_json(progress, self._ended)}, durable=False)


def progress_json(progress: Progress, ended: list[CellRecord]) -> ProgressJson:
    """Return a progress as JSON."""
    return {
        "cell": progress.cell,
        "done": progress.done,
        "cells": progress.cells,
        "run": progress.run,
        "rate": round(progress.rate, 2),
        "left_s": progress.left_s,
        "failed": progress.failed,
        "ended": ended,
        "note": progress.note,
    }


def endpoint(url: str, env_path: str) -> Endpoint:
    """Return the server with the key of its env file. A closed engine checks no key."""
    has_key = env_path and not Endpoint(url).socket
    return Endpoint(url, engine_api.api_key(Path(env_path))) if has_key else Endpoint(url)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    os.umask(0o022)
    # The sampler's nvidia-smi ends with this process.
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(run(sys.argv[1]))
