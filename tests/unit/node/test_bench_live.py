"""The live display: a line per finished cell, and on a terminal one line for the present cell that is overwritten."""

from __future__ import annotations

import io
from typing import Any

import pytest

from bench_streams import recording, steady
from fakes.scripted_engine import Stream
from vllm_spark.bench.live import Live, cell_line, present_line
from vllm_spark.node.bench import figures
from vllm_spark.node.bench.live_rate import LiveRate
from vllm_spark.node.bench.records import CellRecord
from vllm_spark.node.bench.runner import Progress
from vllm_spark.node.bench.stream import Recording


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(**more: Any) -> CellRecord:
    sizes = {"corpus": "chat", "prompt": 512, "output": 128, "depth": 0, "streams": 1}
    cell = {"id": "chat p512 o128 d0 s1", **sizes, "sampling": {}, "server": {}}
    shown = {
        "decode": figures.figure("decode", [50.04, 50.1, 49.9]),
        "first_token": figures.figure("first_token", [212.0]),
    }
    entry = {"record": "cell", "cell": cell, "state": "measured", "started": 0.0, "seconds": 75.0, "runs": 3}
    return {**entry, "figures": shown, "faults": [], "phases": {}, "samples": {}, **more}  # type: ignore[typeddict-item,return-value]


FAULT = {"id": "swap", "what": "spark1: 900 MiB were swapped in and out"}


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (record(), "2/9  chat p512 o128 d0 s1: decode 50.04 tok/s, first token 212 ms (3 runs, 01:15)"),
        (
            record(cell={**record()["cell"], "id": "chat p2048 o16 d0 s1", "prompt": 2048, "output": 16}),
            "2/9  chat p2048 o16 d0 s1: first token 212 ms, decode 50.04 tok/s (3 runs, 01:15)",
        ),
        (
            record(faults=[FAULT]),
            "2/9  chat p512 o128 d0 s1: decode 50.04 tok/s, first token 212 ms (3 runs, 01:15); "
            "warning: spark1: 900 MiB were swapped in and out",
        ),
        (
            record(state="worthless", figures={}, faults=[FAULT]),
            "2/9  chat p512 o128 d0 s1: worthless: spark1: 900 MiB were swapped in and out",
        ),
    ],
)
def test_the_line_of_a_cell(entry: CellRecord, line: str) -> None:
    assert cell_line(entry, 2, 9) == line


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress("chat", done=1, cells=9, run=0), "2/9  chat  warm-up  0.0 tok/s"),
        (
            Progress("chat", done=1, cells=9, run=2, rate=49.96, left_s=130),
            "2/9  chat  run 2  50.0 tok/s, about 02:10 left",
        ),
    ],
)
def test_the_line_of_the_present_cell(progress: Progress, line: str) -> None:
    assert present_line(progress) == line


def shown(out: io.StringIO) -> str:
    progress = Progress("chat", cells=2)
    with Live(out) as live:
        for _ in range(3):
            live.show(progress)
        progress.done, progress.last = 1, record()
        live.show(progress)
        live.show(progress)
    return out.getvalue()


def test_without_a_terminal_only_cells_are_printed() -> None:
    assert shown(io.StringIO()).splitlines() == [cell_line(record(), 1, 2)]


def test_the_note_of_a_run_is_printed_once_and_first() -> None:
    out = io.StringIO()
    progress = Progress("chat", cells=2, note="continues")
    with Live(out) as live:
        live.show(progress)
        progress.done, progress.last = 1, record()
        live.show(progress)
    assert out.getvalue().splitlines() == ["continues", cell_line(record(), 1, 2)]


def test_on_a_terminal_the_present_line_is_overwritten() -> None:
    text = shown(Terminal())
    assert text.count("\n") == 1
    assert text.endswith("\r\x1b[K")
    assert "warm-up" in text


def test_the_rate_is_that_of_the_tokens_since_the_last_reading() -> None:
    whole = recording(Stream(steady(100, first=0.0, gap=0.1, per_chunk=3)))
    now = 100.0
    rate = LiveRate(clock=lambda: now)
    part = Recording(100.0)
    values = []
    for now in (101.05, 102.05):
        part.reader.events = [event for event in whole.reader.events if event.at <= now]
        values.append(rate.read([part]))
    assert values == [pytest.approx(30, rel=0.1), pytest.approx(30)]
    assert rate.read([part]) == 0.0
