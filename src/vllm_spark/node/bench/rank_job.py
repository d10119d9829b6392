"""The sampler of a rank beside the head, as a job: samples of its host while the head measures. Runs as a systemd unit.

    python3 -m vllm_spark.node.bench.rank_job JOB

host_job.py describes the files of the job. Nothing on the head ends this process if the
controller is lost, so it ends by itself: after a time limit, or when the GPU has been idle for so long that the head
cannot be measuring any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypedDict

from vllm_spark.node import host_job
from vllm_spark.node.bench.gpu_reader import GpuReader
from vllm_spark.node.bench.host_cpu import HostCpu
from vllm_spark.node.bench.host_memory import HostMemory
from vllm_spark.node.bench.records import Sample
from vllm_spark.node.bench.telemetry import INTERVAL_S

# An engine without requests shows 0 %. A desktop or a monitor may show a little more.
IDLE_PERCENT = 5.0

End = Literal["stopped", "limit", "idle"]


class RankRequest(TypedDict):
    """What to sample. Samples are appended to `path`, so a run that continues keeps the earlier ones."""

    host: str  # name of this host in the samples
    container: str  # of the engine on this host
    path: str
    limit_s: float  # the longest time of this process
    idle_s: float  # the longest time with an idle GPU; a GPU that does not report its load is never idle


@dataclass(slots=True)
class Limits:
    """When a sampler ends by itself. Times are those of one clock, in seconds."""

    limit_s: float
    idle_s: float
    began: float
    busy_at: float

    def reached(self, now: float, sample: Sample) -> Literal["limit", "idle"] | None:
        """Return the limit that is reached with the sample of now, or None."""
        if sample.get("gpu_percent", 100.0) > IDLE_PERCENT:
            self.busy_at = now
        if now - self.began >= self.limit_s:
            return "limit"
        return "idle" if now - self.busy_at >= self.idle_s else None


def measure(
    request: RankRequest,
    stop: threading.Event,
    interval_s: float = INTERVAL_S,
    *,
    nvidia_smi: Sequence[str] = ("nvidia-smi",),
    clock: Callable[[], float] = time.monotonic,
) -> End:
    """Append samples to the file until `stop` is set or a limit is reached, and return which. Raises OSError.

    The first line of each part names the host and its GPU. `t` of a sample is the Unix time of this host.
    """
    memory, cpu = HostMemory(), HostCpu(request["container"])
    path = Path(request["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(GpuReader(nvidia_smi, clock)) as gpu, path.open("a", encoding="utf-8") as file:
        # A line break first: an interruption may have cut the line before.
        file.write("\n")
        _append(file, {"host": request["host"], "gpu": gpu.name})
        now = clock()
        limits = Limits(request["limit_s"], request["idle_s"], now, now)
        while True:
            stopped = stop.wait(interval_s)
            sample: Sample = {"t": round(time.time(), 3), **memory.read(), **cpu.read(), **gpu.read()}
            _append(file, sample)
            if stopped:
                return "stopped"
            if reached := limits.reached(clock(), sample):
                return reached


def _append(file: TextIO, record: Mapping[str, Any]) -> None:
    file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
    file.flush()


if __name__ == "__main__":
    os.umask(0o022)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    sys.exit(host_job.run(sys.argv[1], lambda request: {"detail": measure(request, told)}))
