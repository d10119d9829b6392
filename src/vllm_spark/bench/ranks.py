"""Samples of the ranks beside the head: placed on the time of the run, judged, and merged into its evidence."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from vllm_spark.node.bench import faults
from vllm_spark.node.bench.observation import Observation
from vllm_spark.node.bench.records import CellRecord, Fault, Sample

# Unix time of a host, as `date +%s.%N` prints it.
TIME = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True)
class HostClock:
    """Clock of a host against another one, in seconds: it is ahead by `offset`, ± `error` at most."""

    offset: float
    error: float

    def against(self, other: HostClock) -> HostClock:
        """Return this clock against that of another host. Both are clocks against that of the controller."""
        return HostClock(self.offset - other.offset, self.error + other.error)

    def __str__(self) -> str:
        return f"{abs(self.offset):.2f} s {'ahead' if self.offset >= 0 else 'behind'}, ± {self.error:.2f} s"


@dataclass(frozen=True, slots=True)
class Reading:
    """Text of a file of a host, and its clock against the controller's. The text is empty without the file."""

    text: str
    clock: HostClock

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Reading:
        return cls(document["text"], HostClock(**document["clock"]))


@dataclass(frozen=True, slots=True)
class RankSamples:
    """Samples of a rank in order of time. `t` is Unix time of the head's clock. `gpu` is empty if unknown. `clock` is
    that of the rank against the head's."""

    host: str
    gpu: str
    samples: tuple[Sample, ...]
    clock: HostClock


@dataclass(frozen=True, slots=True)
class Merged:
    """Lines of an evidence file with the samples of all ranks, and the faults that they show, by cell."""

    text: str
    faults: Mapping[str, Sequence[Fault]]


def command(path: str) -> str:
    """Return the shell command whose output `reading` reads: a file between two times of the host."""
    return f"date +%s.%N; cat -- {path} 2>/dev/null; echo; date +%s.%N"


def reading(printed: str, sent: float, received: float) -> Reading | None:
    """Return what `command` printed, or None if it did not run. `sent` and `received` are times of the controller.

    The offset is that of NTP (RFC 5905, section 8): the mean of the differences before and after. Its error is at most
    half of the time that the command needed beside the reading of the file.
    """
    lines = printed.splitlines()
    times = [number for number, line in enumerate(lines) if TIME.fullmatch(line)]
    if len(times) < 2:  # noqa: PLR2004  before the file and after it
        return None
    first, last = float(lines[times[0]]), float(lines[times[-1]])
    content = [line for line in lines[times[0] + 1 : times[-1]] if line]
    clock = HostClock(((first - sent) + (last - received)) / 2, ((received - sent) - (last - first)) / 2)
    return Reading("".join(f"{line}\n" for line in content), clock)


def samples(host: str, rank: Reading, head: HostClock) -> RankSamples:
    """Return the samples that rank_job has written on a rank. A line that an interruption has cut is left out."""
    gpu = ""
    found: list[Sample] = []
    clock = rank.clock.against(head)
    for record in _records(rank.text):
        if "t" in record:
            found.append(cast(Sample, {**record, "t": record["t"] - clock.offset}))
        else:
            gpu = record.get("gpu") or gpu
    return RankSamples(host, gpu, tuple(sorted(found, key=lambda sample: sample["t"])), clock)


def merge(text: str, ranks: Sequence[RankSamples], accepted: Collection[str] = ()) -> Merged:
    """Return the evidence of the head with the samples of the other ranks in each cell.

    A cell whose samples show a fault gets it, and loses its figures if the fault makes them worthless. `accepted` has
    the ids of faults that do not. A cell without the head's time of day (an older client) stays as it is. A line that
    an interruption has cut is left out.
    """
    records = list(_records(text))
    judged: dict[str, list[Fault]] = {}
    states: dict[str, str] = {}
    for record in records:
        if record["record"] == "run":
            record["host"] |= _clocks(record["key"]["hosts"], ranks)
        elif record["record"] == "cell":
            # The last record of a cell counts.
            judged[record["cell"]["id"]] = _judge(cast(CellRecord, record), ranks, accepted)
            states[record["cell"]["id"]] = record["state"]
        elif record["record"] == "end":
            measured = sum(state == "measured" for state in states.values())
            record.update(measured=measured, failed=len(states) - measured)
    lines = (json.dumps(record, separators=(",", ":"), allow_nan=False) for record in records)
    return Merged("".join(f"{line}\n" for line in lines), {cell: found for cell, found in judged.items() if found})


def summary(merged: Merged, accepted: Collection[str] = ()) -> list[str]:
    """Return a line for each fault and host with its first cell, and the number of the other cells."""
    cells: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for cell, found in merged.faults.items():
        for fault in found:
            host = fault["what"].partition(":")[0]
            cells.setdefault((fault["id"], host), []).append((cell, fault["what"]))
    lines = []
    for (id_, _), seen in cells.items():
        effect = "worthless" if faults.KINDS[id_].worthless and id_ not in accepted else "warning"
        more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
        lines.append(f"{effect}: {id_}: {seen[0][1]} (cell {seen[0][0]}{more})")
    return lines


def _judge(cell: CellRecord, ranks: Iterable[RankSamples], accepted: Collection[str]) -> list[Fault]:
    """Add the samples of the ranks to a cell, and return the faults that they show."""
    if "clock" not in cell:
        return []
    inside = {rank.host: _inside(cell, rank.samples) for rank in ranks}
    found = faults.find_of_hosts(
        Observation(
            {},
            {},
            requests=0,
            streams=cell["cell"]["streams"],
            output=cell["cell"]["output"],
            samples=inside,
            gpus={rank.host: rank.gpu for rank in ranks},
            seconds=cell["seconds"],
        )
    )
    cell["samples"] = {**cell["samples"], **inside}
    cell["faults"] = [*cell["faults"], *found]
    if cell["state"] == "measured" and faults.worthless(found, accepted):
        cell["state"], cell["figures"] = "worthless", {}
    return found


def _clocks(hosts: str, ranks: Sequence[RankSamples]) -> dict[str, dict[str, str]]:
    """Return the fact `clock` of each host; none for a deployment of one host."""
    head = hosts.partition(",")[0]
    facts = {rank.host: {"clock": f"{rank.clock} (of {head}'s)"} for rank in ranks}
    return {head: {"clock": "that of the samples"}, **facts} if ranks else {}


def _inside(cell: CellRecord, all_: Sequence[Sample]) -> list[Sample]:
    """Return the samples of the time of a cell, with t in seconds since the start of the run."""
    begin, shift = cell["clock"], cell["started"] - cell["clock"]
    first, last = (bisect_left(all_, at, key=lambda sample: sample["t"]) for at in (begin, begin + cell["seconds"]))
    return [{**sample, "t": round(sample["t"] + shift, 3)} for sample in all_[first:last]]


def _records(text: str) -> Iterator[dict[str, Any]]:
    """Yield the records of the lines. A line that is cut is left out."""
    for line in text.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
