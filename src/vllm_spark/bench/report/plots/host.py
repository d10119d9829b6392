"""Memory, power, clocks and temperature of each host along the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import sweep, table, thin, timeline
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.bench.report.reading import is_number, letter
from vllm_spark.bench.report.strip import Cells, Span
from vllm_spark.bench.report.timeline import Timeline, Trace
from vllm_spark.node.bench.records import CellRecord, Sample

# Field of a sample, title, unit, and the value below which a whole run is not worth a panel.
FIELDS = (
    ("memory_gib", "Memory in use", "GiB", 0.0),
    ("cache_gib", "Page cache", "GiB", 0.0),
    ("swap_gib", "Swap", "GiB", 0.05),
    ("power_w", "Power", "W", 0.0),
    ("sm_mhz", "GPU clock", "MHz", 0.0),
    ("temperature_c", "Temperature", "°C", 0.0),
)
THROTTLED = "sm_mhz"
# Buckets of all traces together. They bound the size of the page; a panel has no more than it has pixels for.
ALL_BUCKETS, MOST_BUCKETS, FEWEST_BUCKETS = 2500, 240, 40
MAX_ALERTS = 40


def draw(material: Material) -> Drawn | None:
    """Return a panel per host and field, with the runs over each other. Narrow and wide drawings are both made."""
    runs = material.runs
    hosts = list(dict.fromkeys(host for run in runs for cell in run.cells.values() for host in cell["samples"]))
    wanted = [(host, field) for host in hosts for field in FIELDS]
    series = {(host, field[0]): [_samples(run, host, field[0]) for run in runs] for host, field in wanted}
    filled = sum(1 for found in series.values() for samples in found if samples)
    if not filled:
        return None
    buckets = max(FEWEST_BUCKETS, min(MOST_BUCKETS, ALL_BUCKETS // filled))
    strips = _strips(runs)
    panels = []
    for host, (field, title, unit, least) in wanted:
        found = series[host, field]
        if max((value for samples in found for _, value in samples), default=least) <= least:
            continue
        traces = [_trace(index, runs, host, field, samples) for index, samples in enumerate(found) if samples]
        name = f"{title}, {host}"
        seconds = max(run.seconds for run in runs)
        drawings = [
            timeline.draw(Timeline(name, unit, seconds, tuple(each(count) for each in traces), strips), size)
            for size, count in ((timeline.WIDE, buckets), (timeline.NARROW, buckets // 2))
        ]
        panels.append((name, Markup("").join(drawings)))
    return Drawn(tuple(panels), sweep.run_legend(runs, range(len(runs))), wide=True)


def _samples(run: Evidence, host: str, field: str) -> list[tuple[float, float]]:
    return [
        (sample["t"], value)
        for cell in run.cells.values()
        for sample in cell["samples"].get(host, ())
        if is_number(value := sample.get(field)) and is_number(sample.get("t"))
    ]


def _trace(
    index: int, runs: tuple[Evidence, ...], host: str, field: str, samples: list[tuple[float, float]]
) -> Callable[[int], Trace]:
    key = letter(index) if len(runs) > 1 else ""
    alerts = _throttled(runs[index], host) if field == THROTTLED else ()
    return lambda count: Trace(index, key, tuple(thin.thin(samples, count)), alerts)


def _throttled(run: Evidence, host: str) -> tuple[tuple[float, str], ...]:
    """Return the time at which each throttling began, with its reasons."""
    of_host = (sample for cell in run.cells.values() for sample in cell["samples"].get(host, ()))
    samples: list[Sample] = [sample for sample in of_host if is_number(sample.get("t"))]
    parts = groupby(samples, key=lambda sample: sample.get("throttle", ""))
    begun = [(next(part)["t"], f"throttled: {reasons}") for reasons, part in parts if reasons]
    return tuple(begun[:MAX_ALERTS])


def _strips(runs: Sequence[Evidence]) -> tuple[Cells, ...]:
    numbers = table.numbers(runs)
    return tuple(
        Cells(letter(index) if len(runs) > 1 else "", tuple(_span(cell, numbers) for cell in run.cells.values()))
        for index, run in enumerate(runs)
        if run.cells.values()
    )


def _span(record: CellRecord, numbers: Mapping[str, int]) -> Span:
    id_ = record["cell"]["id"]
    return Span(record["started"], record["started"] + record["seconds"], numbers[id_], id_)


PLOT = Plot(
    id="host",
    order=80,
    title="The hosts along the run",
    caption="The line is the mean of the samples in a part of the time, the band their smallest and largest value. "
    "The blocks are the cells, with their number in the table. A triangle above the clock marks the "
    "beginning of a throttling; with several runs it has the letter of its run.",
    draw=draw,
)
