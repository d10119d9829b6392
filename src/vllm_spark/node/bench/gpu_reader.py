"""Readings of one long-running nvidia-smi: power, clock, temperature, load and the reasons of a low clock.

A process per reading would initialise NVML each time and take time from the engine's cores. The one process prints a
line per GPU and second. It ends with its reader: by its id, and by SIGPIPE if the reader is killed.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from vllm_spark.node.bench.records import Sample

# `nvidia-smi --help-query-gpu`. A GB10 has no memory of its own, so its memory fields are [N/A] and are not read.
FIELDS = (
    "index",
    "name",
    "power.draw",
    "clocks.sm",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_event_reasons.active",
)
# NVML's clocks event reasons (docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html), without 0x1, which
# means that the GPU is idle.
REASONS = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
END_S = 2.0
# Without persistence mode the driver initialises the GPU first.
FIRST_LINE_S = 5.0
# A reading that is older does not belong to a sample.
MOST_AGE_S = 3.0


def throttle(mask: str) -> str | None:
    """Return the names of the active reasons of a bit mask, joined by commas. None: the GPU does not report them."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    return ",".join(name for bit, name in REASONS.items() if bits & bit)


def parse(line: str) -> tuple[str, str, Sample] | None:
    """Return (index, name, values) of a line of nvidia-smi, or None for another line. [N/A] leaves the value out."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(FIELDS) or not cells[0].isdecimal():
        return None
    index, name, power, clock, temperature, load, mask = cells
    sample: Sample = {}
    if (value := _number(power)) is not None:
        sample["power_w"] = value
    if (value := _number(clock)) is not None:
        sample["sm_mhz"] = value
    if (value := _number(temperature)) is not None:
        sample["temperature_c"] = value
    if (value := _number(load)) is not None:
        sample["gpu_percent"] = value
    if (reasons := throttle(mask)) is not None:
        sample["throttle"] = reasons
    return index, name, sample


def together(samples: Iterable[Sample]) -> Sample:
    """Return one sample for the GPUs of a host.

    It has the sum of the power, the lowest clock, the highest temperature, the mean load and every reason.
    """
    all_ = list(samples)
    merged: Sample = {}
    if power := [sample["power_w"] for sample in all_ if "power_w" in sample]:
        merged["power_w"] = math.fsum(power)
    if clocks := [sample["sm_mhz"] for sample in all_ if "sm_mhz" in sample]:
        merged["sm_mhz"] = min(clocks)
    if temperatures := [sample["temperature_c"] for sample in all_ if "temperature_c" in sample]:
        merged["temperature_c"] = max(temperatures)
    if loads := [sample["gpu_percent"] for sample in all_ if "gpu_percent" in sample]:
        merged["gpu_percent"] = math.fsum(loads) / len(loads)
    if reasons := [sample["throttle"] for sample in all_ if "throttle" in sample]:
        names = {name for text in reasons for name in text.split(",") if name}
        merged["throttle"] = ",".join(name for name in REASONS.values() if name in names)
    return merged


class GpuReader:
    """Runs nvidia-smi and keeps the latest line of each GPU.

    A host without nvidia-smi has no values, and `problem` has the reason.
    """

    def __init__(self, command: Sequence[str] = ("nvidia-smi",), clock: Callable[[], float] = time.monotonic) -> None:
        self.problem = ""
        self._name = ""
        self._began = threading.Event()
        self._clock = clock
        self._latest: dict[str, tuple[float, Sample]] = {}
        self._process: subprocess.Popen[str] | None = None
        argv = [*command, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits", "-l", "1"]
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
            )
        except OSError as error:
            self.problem = f"{command[0]}: {error.strerror}"
            self._began.set()
            return
        self._thread = threading.Thread(target=self._follow, args=(self._process,), daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """Return the name of the GPU, empty for a host without one. Waits for the first line of nvidia-smi."""
        self._began.wait(FIRST_LINE_S)
        return self._name

    def read(self) -> Sample:
        """Return the values of now; an empty sample if the last line is older than MOST_AGE_S."""
        now = self._clock()
        return together(sample for at, sample in list(self._latest.values()) if now - at <= MOST_AGE_S)

    def close(self) -> None:
        """End nvidia-smi and wait for its end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(END_S)
        if self._process.stdout is not None:
            with contextlib.suppress(OSError):
                self._process.stdout.close()
        self._process = None

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            reading = parse(line)
            if reading:
                index, self._name, sample = reading
                self._latest[index] = (self._clock(), sample)
                self._began.set()
            elif line.strip():
                self.problem = f"nvidia-smi: {line.strip()}"
        self._began.set()


def _number(cell: str) -> float | None:
    """Return the number of a cell. [N/A], [Not Supported] and [Unknown Error] are None."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
