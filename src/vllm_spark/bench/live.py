"""The live display of a run: a line per finished cell, and on a terminal one line for the present cell."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from vllm_spark.core.units import clock
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import CellRecord
from vllm_spark.node.bench.runner import Progress

# The figures of a line, in this order after those that the cell is measured for.
SHOWN = ("decode", "total", "queue", "prefill", "first_token")


@dataclass(slots=True)
class Live:
    """Prints the progress. Without a terminal it prints only the lines of the finished cells."""

    out: TextIO
    _done: int | None = None

    def show(self, progress: Progress) -> None:
        """Print what has changed, and the note of the run first."""
        if self._done is None and progress.note:
            print(progress.note, file=self.out, flush=True)
        if progress.last and progress.done != self._done:
            self._clear()
            print(cell_line(progress.last, progress.done, progress.cells), file=self.out, flush=True)
        elif self.out.isatty():
            self._clear()
            print(present_line(progress), end="", file=self.out, flush=True)
        self._done = progress.done

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._clear()

    def _clear(self) -> None:
        if self.out.isatty():
            print("\r\x1b[K", end="", file=self.out, flush=True)


def cell_line(record: CellRecord, done: int, cells: int) -> str:
    """Return the line of a finished cell: its figures, or why it has none."""
    name = f"{done}/{cells}  {record['cell']['id']}"
    if record["state"] != "measured":
        return f"{name}: {record['state']}: {'; '.join(fault['what'] for fault in record['faults'])}"
    leading = leading_metrics(record["cell"])
    figures = [
        f"{metric.replace('_', ' ')} {record['figures'][metric]['median']:.4g} {record['figures'][metric]['unit']}"
        for metric in dict.fromkeys([*leading, *SHOWN])
        if metric in record["figures"]
    ]
    runs = f"{record['runs']} {'run' if record['runs'] == 1 else 'runs'}"
    warnings = [f"warning: {fault['what']}" for fault in record["faults"]]
    return "; ".join([f"{name}: {', '.join(figures)} ({runs}, {clock(record['seconds'])})", *warnings])


def present_line(progress: Progress) -> str:
    """Return the line of the present cell."""
    run = f"run {progress.run}" if progress.run else "warm-up"
    run += ", its figures vary" if progress.longer else ""
    left = "" if progress.left_s is None else f", about {clock(progress.left_s)} left"
    return f"{progress.done + 1}/{progress.cells}  {progress.cell}  {run}  {progress.rate:.1f} tok/s{left}"
