"""Samples of the host along a run: memory, page cache, swap, CPUs, power, clock, temperature, load, throttling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from vllm_spark.node.bench.gpu_reader import GpuReader
from vllm_spark.node.bench.host_cpu import HostCpu
from vllm_spark.node.bench.host_memory import HostMemory
from vllm_spark.node.bench.records import Sample

INTERVAL_S = 1.0


class Sampler:
    """Takes a sample per interval in a thread of its own, from its start until `close`.

    `started` is the time of `clock` to which `t` refers, e.g. the start of the run. `container` is that of the engine
    on this host. Use it in a `with` statement, so that nvidia-smi ends in any case.
    """

    def __init__(
        self,
        started: float,
        interval_s: float = INTERVAL_S,
        *,
        nvidia_smi: Sequence[str] = ("nvidia-smi",),
        clock: Callable[[], float] = time.monotonic,
        container: str = "",
    ) -> None:
        self._started = started
        self._interval_s = interval_s
        self._clock = clock
        self._memory = HostMemory()
        self._cpu = HostCpu(container)
        self._gpu = GpuReader(nvidia_smi, clock)
        self._samples: list[Sample] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def gpu(self) -> str:
        """Return the name of the GPU; empty without nvidia-smi. Waits for the first line of nvidia-smi."""
        return self._gpu.name

    @property
    def problem(self) -> str:
        """Return why there are no values of a GPU; empty if there are."""
        return self._gpu.problem

    def samples(self, since: float = 0.0, until: float = float("inf")) -> list[Sample]:
        """Return the samples with since <= t <= until, both in seconds after `started`."""
        return [sample for sample in list(self._samples) if since <= sample["t"] <= until]

    def since(self, begin: float, zero: float) -> list[Sample]:
        """Return the samples since `begin`, with t in seconds after `zero`. Both are times of `clock`."""
        shift = self._started - zero
        return [{**sample, "t": round(sample["t"] + shift, 3)} for sample in self.samples(begin - self._started)]

    def close(self) -> None:
        """Take a last sample, and end the thread and nvidia-smi. A second call does nothing."""
        self._end.set()
        self._thread.join()
        self._gpu.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._end.wait(self._interval_s):
            self._samples.append(self._sample())
        self._samples.append(self._sample())

    def _sample(self) -> Sample:
        now = round(self._clock() - self._started, 3)
        return {"t": now, **self._memory.read(), **self._cpu.read(), **self._gpu.read()}
