"""Memory, power, clocks and temperature of each host along the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import sweep, table, text, thin, timeline
from vllm_spark.bench.report.material import Drawn, Material, Plot
from vllm_spark.bench.report.reading import is_number, letter
from vllm_spark.bench.report.strip import Cells, Span
from vllm_spark.bench.report.timeline import Row, Trace
from vllm_spark.node.bench.records import CellRecord, Sample

# Field of a sample, title, unit, and the value below which a whole run is not worth a row.
FIELDS = (
    ("memory_gib", "Memory in use", "GiB", 0.0),
    ("cache_gib", "Page cache", "GiB", 0.0),
    ("swap_gib", "Swap", "GiB", 0.05),
    ("power_w", "Power", "W", 0.0),
    ("sm_mhz", "GPU clock", "MHz", 0.0),
    ("temperature_c", "Temperature", "°C", 0.0),
)
THROTTLED = "sm_mhz"
# Buckets of all traces together. They bound the size of the page; a row has no more than it has pixels for.
ALL_BUCKETS, MOST_BUCKETS, FEWEST_BUCKETS = 2500, 240, 40
MAX_ALERTS = 40
# Throttlings that the caption tells in words.
MAX_TOLD = 8
Samples = list[tuple[float, float]]


def draw(material: Material) -> Drawn | None:
    """Return a panel per host, with a row per field and the runs over each other."""
    runs = material.runs
    hosts = list(dict.fromkeys(host for run in runs for cell in run.cells.values() for host in cell["samples"]))
    series = {
        (host, field): [_samples(run, host, field) for run in runs] for host in hosts for field, _, _, _ in FIELDS
    }
    filled = sum(1 for found in series.values() for samples in found if samples)
    if not filled:
        return None
    buckets = max(FEWEST_BUCKETS, min(MOST_BUCKETS, ALL_BUCKETS // filled))
    seconds = max(run.seconds for run in runs)
    panels = []
    for host in hosts:
        fields = {field: series[host, field] for field, _, _, _ in FIELDS}
        rows = [_rows(runs, host, fields, count) for count in (buckets, buckets // 2)]
        if rows[0]:
            panels.append((host, timeline.both(host, rows, _strips(runs), seconds)))
    return Drawn(tuple(panels), sweep.run_legend(runs, range(len(runs))), _told(runs, hosts), wide=True)


def _samples(run: Evidence, host: str, field: str) -> Samples:
    return [
        (sample["t"], value)
        for cell in run.cells.values()
        for sample in cell["samples"].get(host, ())
        if is_number(value := sample.get(field)) and is_number(sample.get("t"))
    ]


def _rows(runs: Sequence[Evidence], host: str, series: Mapping[str, list[Samples]], count: int) -> list[Row]:
    """Return the rows of a host with at most `count` buckets in each trace."""
    rows = []
    for field, title, unit, least in FIELDS:
        if max((value for samples in series[field] for _, value in samples), default=least) <= least:
            continue
        traces = [
            Trace(
                index,
                letter(index) if len(runs) > 1 else "",
                tuple(thin.thin(samples, count)),
                tuple(t for t, _ in _throttled(runs[index], host)) if field == THROTTLED else (),
            )
            for index, samples in enumerate(series[field])
            if samples
        ]
        rows.append(Row(title, unit, tuple(traces)))
    return rows


def _throttled(run: Evidence, host: str) -> list[tuple[float, str]]:
    """Return the time at which each throttling began, with its reasons."""
    of_host = (sample for cell in run.cells.values() for sample in cell["samples"].get(host, ()))
    samples: list[Sample] = [sample for sample in of_host if is_number(sample.get("t"))]
    parts = groupby(samples, key=lambda sample: sample.get("throttle", ""))
    return [(next(part)["t"], reasons) for reasons, part in parts if reasons][:MAX_ALERTS]


def _told(runs: Sequence[Evidence], hosts: Sequence[str]) -> str:
    """Return the throttlings as text: what the triangles mean, without a mouse."""
    told = [
        f"{host}{f' of {letter(n)}' if len(runs) > 1 else ''} after {text.duration(t)} ({reasons})"
        for n, run in enumerate(runs)
        for host in hosts
        for t, reasons in _throttled(run, host)
    ]
    more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return f"Throttled: {', '.join(told[:MAX_TOLD])}{more}." if told else ""


def _strips(runs: Sequence[Evidence]) -> tuple[Cells, ...]:
    numbers = table.numbers(runs)
    return tuple(
        Cells(letter(index) if len(runs) > 1 else "", tuple(_span(cell, numbers) for cell in run.cells.values()))
        for index, run in enumerate(runs)
        if run.cells.values()
    )


def _span(record: CellRecord, numbers: Mapping[str, int]) -> Span:
    return Span(record["started"], record["started"] + record["seconds"], numbers[record["cell"]["id"]])


PLOT = Plot(
    id="host",
    order=80,
    title="The hosts along the run",
    caption="The line is the mean of the samples in a part of the time, the band their smallest and largest value; "
    "above each row is what they reach. The blocks are the cells, with their number in the table. A triangle marks "
    "the beginning of a throttling.",
    draw=draw,
)
