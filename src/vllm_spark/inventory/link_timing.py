"""The all-reduces that fabric.yml timed between the Sparks of a server, which a forecast takes (sizing/constants.py).

A timing is a file of reports/fabric on the controller, whose name has the hosts. A newer one replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core import documents
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.core.units import GB
from vllm_spark.node.all_reduce import MARK

BAD_TIMING = register("bad-timing", runbook="all-reduce")

# A backend whose timing says something about the engine's. gloo is that of a machine without a GPU.
COUNTS = "nccl"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one all-reduce over all ranks: `calls` has the bytes of the message and microseconds, the small one
    first. `day` is the day of the measurement, `image` that of the server in whose container it ran."""

    hosts: Sequence[str]
    backend: str
    calls: Sequence[tuple[int, float]]
    image: str
    day: str

    @property
    def counts(self) -> bool:
        """Whether the timing says something about the engine's all-reduces."""
        return self.backend == COUNTS

    def line(self) -> str:
        """Return the timing for a person; the rate is what nccl-tests calls busbw."""
        small, large = (f"{size / 1024:,.0f} KiB in {us:,.0f} µs" for size, us in self.calls)
        size, us = self.calls[-1]
        text = f"all-reduce over {'+'.join(self.hosts)} by {self.backend}: {small}, {large}"
        rate = f", {self.sent(size) / us * 1e6 / GB:.1f} GB/s"
        return text + rate + ("" if self.counts else "; there is no GPU, so no forecast takes it")

    def sent(self, size: int) -> float:
        """Return the bytes that each rank sends of a message (a ring)."""
        ranks = len(self.hosts)
        return size * 2 * (ranks - 1) / ranks


def of_output(text: str, hosts: Sequence[str], image: str, day: str) -> Timing | None:
    """Return the timing that node/all_reduce.py printed among other lines, or None if it did not."""
    for line in text.splitlines():
        if line.startswith(f'{{"{MARK}"'):
            measured = json.loads(line)[MARK]
            return Timing(tuple(hosts), measured["backend"], [tuple(call) for call in measured["calls"]], image, day)
    return None


def file_of(folder: Path, hosts: Sequence[str]) -> Path:
    """Return the file of a timing. Which host is the head makes no difference."""
    return folder / f"{'+'.join(sorted(hosts))}.json"


def write(folder: Path, timing: Timing) -> Path:
    """Write a timing into the folder and return its file."""
    file = file_of(folder, timing.hosts)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(timing), indent=2) + "\n", encoding="utf-8")
    return file


def read(folder: Path, hosts: Sequence[str]) -> Timing | None:
    """Return the timing between these hosts, or None without one. Raises RefusedError for a file that is none."""
    file = file_of(folder, hosts)
    if not file.exists():
        return None
    try:
        document: Mapping[str, Any] = documents.read_json(file)
        (small, short), (large, long) = document["calls"]
        calls = [(int(small), float(short)), (int(large), float(long))]
        return Timing(tuple(document["hosts"]), document["backend"], calls, document["image"], document["day"])
    except (DocumentError, KeyError, TypeError, ValueError) as error:
        refusal = BAD_TIMING(
            what=f"{file}: {error!r}",
            expected="two timings of an all-reduce, as fabric.yml writes them",
            fix=Fix("ansible-playbook fabric.yml -e time_all_reduce=true", "It writes the file again."),
        )
        raise RefusedError([refusal]) from error
