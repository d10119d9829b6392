#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Writes the figures of this Spark that no exporter has, for the textfile collector of node-exporter. Its timer starts
it every 15 seconds. Memory, disks, network, RDMA and pressure are node-exporter's own; acceptance is the engine's.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import certificate, deployment_state, endings, host_layout, state_file  # noqa: E402  the path above leads to it
from vllm_spark.node.deployment_state import PLACES, STATES, json_object, text  # noqa: E402

FOLDER = Path(host_layout.METRICS_RUN_DIR)
HISTORY, CERTIFICATE = host_layout.HISTORY_DIR, host_layout.EDGE_CERTIFICATE
# Every metric that this program writes: name without PREFIX -> type and meaning. docs/operations/metrics.md has them.
PREFIX = "vllm_spark_"
METRICS: Mapping[str, tuple[str, str]] = {
    "state": ("gauge", "1 for the state that a deployment has, 0 for every other one"),
    "state_since_seconds": ("gauge", "when that state began"),
    "failed_starts": ("gauge", "starts in a row that have failed"),
    "restarts_total": ("counter", "starts by systemd after an end that nobody asked for"),
    "rank": ("gauge", "this Spark's rank of a deployment"),
    "peers": ("gauge", "other Sparks of a deployment that this rank waits for or runs with"),
    "changed_seconds": ("gauge", "when the launch was deployed"),
    "gates_passed": ("gauge", "1 if the gates held at their last judgement"),
    "gates_seconds": ("gauge", "when the gates were judged"),
    "certificate_end_seconds": ("gauge", "when the certificate of the edge ends"),
    "gpu_power_watts": ("gauge", "power of the GPU"),
    "gpu_temperature_celsius": ("gauge", "temperature of the GPU, which shares its chip with the CPU"),
    "gpu_clock_mhz": ("gauge", "clock of the multiprocessors"),
    "gpu_clock_max_mhz": ("gauge", "highest clock that they may have"),
    "gpu_throttled": ("gauge", "1 while the driver holds the clock back for this reason"),
    "kernel_events_total": ("counter", "lines of the kernel since the boot, by kind"),
}
FIELDS = "power.draw,temperature.gpu,clocks.sm,clocks.max.sm,clocks_event_reasons.active"
GPU = ("gpu_power_watts", "gpu_temperature_celsius", "gpu_clock_mhz", "gpu_clock_max_mhz")
# Bits of NVML's clock event reasons (nvml.h, nvmlClocksEventReason*).
REASONS = {"setting": 0x2, "power-cap": 0x4, "hardware": 0x8, "heat": 0x20 | 0x40, "power-brake": 0x80}
# What a line of the kernel is. Corrected errors of PCIe are no event: a sound link has them too.
EVENTS = {
    "xid": re.compile(r"NVRM: Xid \("),
    "aer": re.compile(r"AER: (?:Multiple )?Uncorrect|PCIe Bus Error: severity=Uncorrect"),
    "no-memory": re.compile(r"NV_ERR_NO_MEMORY"),
    "killed": re.compile(r"Out of memory: Killed process|oom-kill:"),
}


class Sample(NamedTuple):
    """A value of a metric with its labels, such as `deployment="chat"`."""

    metric: str
    labels: str
    value: float


def main() -> int:
    file = FOLDER / "spark.prom"
    samples = [*of_deployments(), *of_edge(), *of_gpu(), *of_kernel(text(str(file)))]
    state_file.replace_file(file, exposition(samples), durable=False)
    return 0


def exposition(samples: list[Sample]) -> str:
    """Return samples as Prometheus reads them, each metric once with its meaning."""
    lines = []
    for name, (kind, meaning) in METRICS.items():
        own = [f"{PREFIX}{name}{{{one.labels}}} {one.value:.15g}" for one in samples if one.metric == name]
        lines += [f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} {kind}", *own] if own else []
    return "".join(f"{line}\n" for line in lines)


def of_deployments() -> Iterator[Sample]:
    """Yield state, starts, rank and gates of each deployment that is placed here."""
    names = PLACES.deployments()
    units = {f"vllm@{name}.service": name for name in names}
    for shown in endings.shown(units, "Id", "NRestarts") if units else []:
        if shown.get("NRestarts", "").isdigit() and shown["Id"] in units:
            yield Sample("restarts_total", f'deployment="{units[shown["Id"]]}"', float(shown["NRestarts"]))
    for name in names:
        label, state = f'deployment="{name}"', deployment_state.present(name, PLACES)
        for one in STATES:
            yield Sample("state", f'{label},state="{one}"', float(one == state["state"]))
        yield Sample("state_since_seconds", label, state["since"])
        yield Sample("failed_starts", label, state["failed"])
        yield Sample("peers", label, len(state["peers"]))
        record = os.path.join(PLACES.config, name, "deployed.json")
        deployed = json_object(text(record))
        yield Sample("rank", label, deployed.get("rank") or 0)
        with suppress(OSError):
            launch = f'{label},recipe="{deployed.get("recipe", "")}",launch="{deployed.get("launch", "")}"'
            yield Sample("changed_seconds", launch, os.stat(record).st_mtime)
        last = text(os.path.join(HISTORY, f"{name}.jsonl")).splitlines()[-1:]
        judged = json_object(last[0] if last else "")
        with suppress(KeyError, TypeError, ValueError):
            yield Sample("gates_seconds", label, datetime.fromisoformat(judged["time"]).timestamp())
            yield Sample("gates_passed", label, float(judged["holds"]))


def of_edge() -> Iterator[Sample]:
    ends = certificate.end(CERTIFICATE)
    yield from [Sample("certificate_end_seconds", "", ends)] if ends else []


def of_gpu() -> Iterator[Sample]:
    """Yield what the driver says. Its utilisation is left out: it is 96 % during a hang, too."""
    row = endings.output_of("nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits").strip().split(", ")
    for name, value in zip(GPU, row, strict=False):
        if re.fullmatch(r"\d+(\.\d+)?", value):
            yield Sample(name, "", float(value))
    if re.fullmatch(r"0x[0-9a-fA-F]+", row[-1]):
        held = int(row[-1], 16)
        for name, bit in REASONS.items():
            yield Sample("gpu_throttled", f'reason="{name}"', float(bool(held & bit)))


def of_kernel(before: str) -> Iterator[Sample]:
    """Yield the counts of lines of the kernel. `before`: what was written last, to which the new lines are added."""
    command = ["journalctl", "--quiet", "--dmesg", "--boot", "--output=cat", f"--cursor-file={FOLDER / 'cursor'}"]
    lines = endings.output_of(*command).splitlines()
    for kind, pattern in EVENTS.items():
        known = re.search(rf'^{PREFIX}kernel_events_total{{kind="{kind}"}} (\d+)$', before, re.MULTILINE)
        count = sum(1 for line in lines if pattern.search(line)) + (int(known[1]) if known else 0)
        yield Sample("kernel_events_total", f'kind="{kind}"', count)


if __name__ == "__main__":
    sys.exit(main())
