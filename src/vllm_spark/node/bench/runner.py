"""Run the cells of a profile one after the other and write each one's record as soon as it has ended."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_spark.node.bench import evidence_file, pooled
from vllm_spark.node.bench.cell_run import CellRun, Messages, Result, Surroundings
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.live_rate import LiveRate
from vllm_spark.node.bench.records import Cell, CellRecord, EndRecord, RunRecord, Sample
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.server import Server
from vllm_spark.node.bench.stream import Recording

Samples = Callable[[], dict[str, list[Sample]]]

# After one of these the other cells would only fail for the same reason.
FINAL = ("refused", "status-401", "status-403", "status-404")


@dataclass(slots=True)
class Progress:
    """The state of a run. `run` is 0 in a warm-up. `rate` is in tokens per second of all streams."""

    cell: str = ""
    done: int = 0
    cells: int = 0
    run: int = 0
    rate: float = 0.0
    left_s: float | None = None  # None: unknown before the first cell has ended
    failed: int = 0  # cells without figures
    last: CellRecord | None = None  # the cell that ended last
    note: str = ""  # what the file had before this process
    longer: bool = False  # the present cell goes on because its figures vary
    comparisons: int = 1  # leading figures of all cells
    _ended: int = 0  # cells of this process

    def add(self, entry: CellRecord, seconds: float) -> None:
        """Count a cell that has ended, `seconds` after the start of this process."""
        self._ended += 1
        self.done += 1
        self.failed += entry["state"] != "measured"
        self.last = entry
        self.left_s = max(self.cells - self.done, 0) * seconds / self._ended


@dataclass(frozen=True, slots=True)
class Runner:
    """A run of a profile against one server.

    `prompt(cell, run, stream)` returns the messages of a request. `samples(begin, zero)` returns the hosts' samples
    since `begin`, with times in seconds after `zero`, the start of the run; both are times of `clock`. `report` is
    called twice a second while streams run.
    """

    server: Server
    rules: Rules
    prompt: Callable[[Cell, int, int], Messages]
    samples: Callable[[float, float], dict[str, list[Sample]]]
    report: Callable[[Progress], None]
    gpus: Mapping[str, str] = field(default_factory=dict)
    accepted: Collection[str] = ()
    clock: Callable[[], float] = time.perf_counter

    def run(
        self, record: RunRecord, cells: Sequence[Cell], path: Path, *, ends: bool = True, note: str = ""
    ) -> Progress:
        """Measure the cells that the file does not have yet and return the last progress. `ends`: no other cells of
        this run follow, so the file gets its last line. `note`: that of the progress, in place of what this run
        continues.

        Raises evidence_file.OtherRunError if the file belongs to another run.
        """
        present = evidence_file.begin(path, dict(record))
        began = self.clock() - present.ended
        comparisons = sum(len(leading_metrics(cell)) for cell in cells)
        done = len(present.ids & {cell["id"] for cell in cells})
        progress = Progress(done=done, cells=len(cells), note=note, comparisons=comparisons)
        if present.since:
            kept = f"{progress.done} of {progress.cells} cells are measured"
            progress.note = f"continues the run that began {present.since}: {kept}"
        self.report(progress)
        for cell in self._remaining(cells, present.ids, began):
            progress.cell, progress.run = cell["id"], 0
            entry = self._entry(cell, progress, began)
            evidence_file.append(path, dict(entry))
            progress.add(entry, self.clock() - began - present.ended)
            self.report(progress)
            if any(fault["id"] in FINAL for fault in entry["faults"]):
                return progress
        if not ends:
            return progress
        measured, failed = evidence_file.counts(path)
        end: EndRecord = {
            "record": "end",
            "seconds": round(self.clock() - began, 3),
            "measured": measured,
            "failed": failed,
        }
        evidence_file.append(path, dict(end))
        return progress

    def _remaining(self, cells: Sequence[Cell], present: Collection[str], began: float) -> Iterator[Cell]:
        """Yield the cells that are not present; with `hours` all of them repeatedly, as `ID #2` …, until their end."""
        hours = self.rules.hours
        for number in itertools.count(1):
            if number > 1 and (hours is None or self.clock() - began >= hours * 3600):
                return
            for cell in cells:
                repeated: Cell = cell if number == 1 else {**cell, "id": f"{cell['id']} #{number}"}
                if repeated["id"] not in present:
                    yield repeated

    def _entry(self, cell: Cell, progress: Progress, zero: float) -> CellRecord:
        """Measure a cell of a run that began at `zero` and return its record."""
        began, unix_time = self.clock(), time.time()

        def samples() -> dict[str, list[Sample]]:
            return self.samples(began, zero)

        result = self._measure(cell, progress, samples)
        # Before the length of the cell is taken, so that no sample is later than the end of its cell.
        taken = samples()
        return {
            "record": "cell",
            "cell": cell,
            "state": result.state,
            "started": round(began - zero, 3),
            "clock": round(unix_time, 3),
            "seconds": round(self.clock() - began, 3),
            "runs": result.runs,
            "figures": result.figures,
            "faults": result.faults,
            "phases": {},
            "samples": taken,
        }

    def _measure(self, cell: Cell, progress: Progress, samples: Samples) -> Result:
        rate = LiveRate()

        def watch(recordings: Sequence[Recording]) -> None:
            progress.rate = rate.read(recordings)
            self.report(progress)

        def prompt(run: int, stream: int) -> Messages:
            nonlocal rate
            rate, progress.run = LiveRate(), max(run + 1, 0)
            progress.longer = progress.run > self.rules.most_runs
            return self.prompt(cell, run, stream)

        if "documents" in cell:
            return pooled.measure(self.server, cell, self.rules, prompt, progress.comparisons)
        around = Surroundings(samples, self.gpus, self.accepted)
        return CellRun(self.server, cell, self.rules, prompt, around, watch, progress.comparisons).measure()
