"""What was sampled along the runs, over one axis of time: decode of repeated cells, and the hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import names, panel, scale, svg, sweep, table, text
from vllm_spark.bench.report.panel import Panel, Series, thin
from vllm_spark.bench.report.sweep import Drawn
from vllm_spark.bench.report.text import figure, is_number, letter, letters

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
# Points of all lines together. They bound the size of the page; a line has no more than it has pixels for.
ALL_POINTS, MOST_POINTS, FEWEST_POINTS = 3000, 150, 40
# A line of fewer repetitions along the run shows noise.
LEAST_REPEATED = 4
# More cells are not shaded, because these would be most of the drawing. Throttlings in a panel, and those in words.
MAX_SHADED, MAX_ALERTS, MAX_TOLD = 80, 40, 8
# (time, value) of the samples of each run, by its place.
Samples = dict[int, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What a panel is made of: the samples of each line, and the time and the words of each throttling."""

    title: str
    unit: str
    samples: Samples
    throttled: Sequence[tuple[float, str]] = ()


def decode(runs: Sequence[Evidence]) -> Drawn | None:
    """Return decode along the run: the cells of a single run over each other, or a panel per cell with the runs."""
    found = _repeated(runs)
    if not found:
        return None
    known = names.of_cells([record["cell"] for run in runs for record in run.cells.values()])
    named = {cell: known.get(cell, text.plain(cell)) for cell in found}
    if len(runs) == 1 and len(found) <= svg.SHAPE_COUNT:
        together = {n: samples[0] for n, samples in enumerate(found.values())}
        panels = _panels([_Sampled("Decode", "tok/s", together)], runs, [*named.values()])
        return Drawn(panels, sweep.group_legend(named.values()))
    panels = _panels([_Sampled(named[cell], "tok/s", one) for cell, one in found.items()], runs, letters(len(runs)))
    return Drawn(panels, sweep.run_legend(runs, {n for samples in found.values() for n in samples}))


def _repeated(runs: Sequence[Evidence]) -> dict[str, Samples]:
    """Return time and decode of each repetition, by the cell without its number."""
    found: dict[str, Samples] = {}
    for index, run in enumerate(runs):
        for record in run.cells.values():
            if known := figure(record, "decode"):
                middle = record["started"] + record["seconds"] / 2
                cell = found.setdefault(table.kind(record["cell"]["id"]), {})
                cell.setdefault(index, []).append((middle, known["median"]))
    enough = {cell: {n: one for n, one in runs_.items() if len(one) >= LEAST_REPEATED} for cell, runs_ in found.items()}
    return {cell: samples for cell, samples in enough.items() if samples}


def hosts(runs: Sequence[Evidence]) -> Drawn | None:
    """Return a panel per host and field, with the runs over each other."""
    every = dict.fromkeys(host for run in runs for cell in run.cells.values() for host in cell["samples"])
    sampled = [
        _Sampled(f"{host} · {title}", unit, samples, _throttled(runs, host) if field == THROTTLED else ())
        for host in every
        for field, title, unit, least in FIELDS
        if (samples := _samples(runs, host, field))
        and max(value for one in samples.values() for _, value in one) > least
    ]
    if not sampled:
        return None
    causes = _told([words for one in sampled for _, words in one.throttled])
    return Drawn(_panels(sampled, runs, letters(len(runs))), sweep.run_legend(runs, range(len(runs))), causes)


def _panels(
    sampled: Sequence[_Sampled], runs: Sequence[Evidence], called: Sequence[str]
) -> tuple[tuple[str, Markup], ...]:
    """Return title and svg of each panel; the title has what the samples reach, readable without a mouse."""
    lines = sum(len(one.samples) for one in sampled)
    count = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // lines))
    x, shaded = scale.time(max(run.seconds for run in runs), 6), tuple(_shaded(runs))
    made = []
    for one in sampled:
        series = tuple(Series(n, called[n], thin(samples, count)) for n, samples in one.samples.items())
        y = scale.linear([v for each in series for p in each.points for v in (p.low, p.high)], 4, zero=False)
        label, alerts = f"time since the start of the run, {x.unit}", tuple(t for t, _ in one.throttled)
        drawn = panel.draw(Panel(one.title, label, one.unit, x, y, series, True, alerts, shaded))
        made.append((f"{one.title}: {', '.join(f'{each.name} {panel.span(each)}'.strip() for each in series)}", drawn))
    return tuple(made)


def _shaded(runs: Sequence[Evidence]) -> Iterator[tuple[float, float]]:
    """Yield begin and end of every second cell of a single run."""
    cells = [*runs[0].cells.values()]
    if len(runs) == 1 and len(cells) <= MAX_SHADED:
        yield from ((cell["started"], cell["started"] + cell["seconds"]) for cell in cells[1::2])


def _samples(runs: Sequence[Evidence], host: str, field: str) -> Samples:
    found = {
        n: [
            (sample["t"], value)
            for cell in run.cells.values()
            for sample in cell["samples"].get(host, ())
            if is_number(value := sample.get(field)) and is_number(sample.get("t"))
        ]
        for n, run in enumerate(runs)
    }
    return {n: samples for n, samples in found.items() if samples}


def _throttled(runs: Sequence[Evidence], host: str) -> list[tuple[float, str]]:
    """Return the time at which each throttling of a host began, and what it was in words."""
    found: list[tuple[float, str]] = []
    numbers = table.numbers(runs)
    for n, run in enumerate(runs):
        samples = [
            (float(sample["t"]), str(sample.get("throttle", "")), numbers[cell["cell"]["id"]])
            for cell in run.cells.values()
            for sample in cell["samples"].get(host, ())
            if is_number(sample.get("t"))
        ]
        begun = [(reasons, next(part)) for reasons, part in groupby(samples, key=lambda one: one[1]) if reasons]
        whose = f"{host} of {letter(n)}" if len(runs) > 1 else host
        found += [
            (t, f"{whose} after {text.duration(t)} in cell {cell} ({reasons})") for reasons, (t, _, cell) in begun
        ][:MAX_ALERTS]
    return found


def _told(throttlings: Sequence[str]) -> str:
    """Return the throttlings as text: what the triangles mean, without a mouse."""
    more = f" and {len(throttlings) - MAX_TOLD} more" if len(throttlings) > MAX_TOLD else ""
    return f"Throttled: {', '.join(throttlings[:MAX_TOLD])}{more}." if throttlings else ""
