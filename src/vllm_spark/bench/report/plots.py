"""The plots of the report. `ALL` has them in their order; each is panels of one kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import along, scale, sweep, text
from vllm_spark.bench.report.panel import Point
from vllm_spark.bench.report.sweep import Drawn, Line, View
from vllm_spark.bench.report.text import is_number
from vllm_spark.node.bench.leading import FIRST
from vllm_spark.node.bench.records import Cell, CellRecord

Runs = Sequence[Evidence]
TOKENS = "tokens (k = 1024)"
ACCEPTANCE = "acceptance_by_position"
# Above this ratio of the largest to the smallest value a linear axis would flatten the small ones.
WIDE_RANGE = 12


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the report. `draw` returns None if the runs have no data for it."""

    id: str
    title: str
    caption: str
    draw: Callable[[Runs], Drawn | None]


def _swept(
    views: Sequence[tuple[str, str, str]],
    place: Callable[[Cell], float | None],
    ignored: str,
    x_label: str,
    x: Callable[[list[float]], scale.Axis] = scale.log2,
) -> Callable[[Runs], Drawn | None]:
    """Return how a plot is drawn that has a panel (title, label, metric) for each view."""

    def draw(runs: Runs) -> Drawn | None:
        made = [
            View(title, label, sweep.lines(runs, lambda cell, metric=metric: _metric(cell, metric), place, ignored))  # type: ignore[misc]
            for title, label, metric in views
        ]
        return sweep.panels(made, runs, x_label, x, scale.linear)

    return draw


def _metric(cell: Cell, metric: str) -> str:
    """Return the metric of a cell; one stream is also all streams together."""
    return "decode" if metric == "total" and cell["streams"] == 1 else metric


def _speculative(cell: Cell) -> float | None:
    value = cell["server"].get("speculative_tokens")
    return float(value) if isinstance(value, int) else None


def _first_token(runs: Runs) -> Drawn | None:
    """Return the time to the first token by what is read before it. A line joins cells that only differ in the prompt,
    or only in the depth before it: the same number of tokens takes another time as a prompt than as depth."""

    def lines(unit: float) -> list[Line]:
        return [line for axis in ("prompt", "depth") for line in sweep.lines(runs, lambda _: FIRST, _read, axis, unit)]

    seconds = lines(1000.0)
    long = any(point.high >= 1 for line in seconds for point in line.points)
    view = View("", "s", seconds) if long else View("", "ms", lines(1.0))
    return sweep.panels([view], runs, f"depth + prompt, {TOKENS}", scale.log2, _times)


def _read(cell: Cell) -> float:
    return float(cell["prompt"] + cell["depth"])


def _times(values: list[float]) -> scale.Axis:
    positive = [value for value in values if value > 0]
    wide = positive and max(positive) > WIDE_RANGE * min(positive)
    return scale.log10(positive) if wide else scale.linear(values)


def _acceptance(runs: Runs) -> Drawn | None:
    """Return the share of accepted tokens per drafted position: the median of the cells of a corpus."""
    lines = [line for index, run in enumerate(runs) for line in _accepted(index, run)]
    return sweep.panels(
        [View("", "accepted, %", lines)],
        runs,
        "drafted position",
        scale.whole,
        lambda values: scale.linear([*values, 100.0]),
    )


def _accepted(index: int, run: Evidence) -> list[Line]:
    found: dict[sweep.SeriesKey, list[list[float]]] = {}
    measured = [(record["cell"], shares) for record in run.cells.values() if (shares := _shares(record))]
    # The sweep of speculative tokens has a plot of its own.
    for cell, shares in [one for one in measured if not one[0]["server"]] or measured:
        group = tuple(sweep.DIMENSIONS[name](cell) for name in ("corpus", "server"))
        found.setdefault(group, []).append(shares)
    return [Line(index, group, tuple(_positions(cells))) for group, cells in found.items()]


def _shares(record: CellRecord) -> list[float]:
    """Return the shares of a measured cell, or nothing."""
    known = record["figures"].get(ACCEPTANCE) if record["state"] == "measured" else None
    shares = known["median"] if known else None
    return shares if isinstance(shares, list) and all(map(is_number, shares)) else []


def _positions(cells: list[list[float]]) -> list[Point]:
    points = []
    for position in range(max(map(len, cells))):
        shares = [100 * shares[position] for shares in cells if position < len(shares)]
        title = f"position {position + 1}: {text.number(median(shares))} %, median of {len(shares)} cells"
        points.append(Point(position + 1, median(shares), min(shares), max(shares), title))
    return points


ALL = (
    Plot(
        "streams",
        "Decode by streams",
        "Tokens per second after the first chunk, in the window in which all streams are active.",
        _swept(
            (("Each stream", "decode, tok/s", "decode"), ("All streams together", "total, tok/s", "total")),
            lambda cell: float(cell["streams"]),
            "streams",
            "streams",
        ),
    ),
    Plot(
        "depth",
        "Decode and prefill by depth",
        "Tokens per second of a stream after its first chunk, and prompt tokens per second before it, by the context "
        "before the prompt. The axis is logarithmic; 0 is beside it.",
        _swept(
            (("Decode", "decode, tok/s", "decode"), ("Prefill", "prefill, tok/s", "prefill")),
            lambda cell: float(cell["depth"]),
            "depth",
            f"depth, {TOKENS}",
        ),
    ),
    Plot(
        "first-token",
        "Time to first token",
        "From sending the request to the first token; reasoning counts. A line joins cells that differ in the prompt "
        "alone, or in the depth before it alone.",
        _first_token,
    ),
    Plot(
        "acceptance",
        "Acceptance by position",
        "Share of the drafted tokens that the model accepted, by their position in the draft. Each point is the median "
        "of the cells of a corpus, its bar the smallest and the largest of them.",
        _acceptance,
    ),
    Plot(
        "speculation",
        "Sweep of speculative tokens",
        "A step takes longer with each drafted token and yields more tokens. Decode is best where both balance.",
        _swept(
            (("Decode", "tok/s", "decode"), ("Step", "ms", "step"), ("Tokens per step", "tok", "tokens_per_step")),
            _speculative,
            "server",
            "speculative tokens",
            scale.whole,
        ),
    ),
    Plot(
        "mode",
        "Eager against compiled",
        "A compiled server joins small kernels and starts a step with one CUDA graph; an eager one starts every kernel "
        "from Python. The step shows the difference first.",
        _swept(
            (("Decode", "tok/s", "decode"), ("Step", "ms", "step"), ("Prefill", "prompt tok/s", "prefill")),
            lambda cell: float(cell["prompt"]) if "mode" in cell["server"] else None,
            "prompt",
            f"prompt, {TOKENS}",
        ),
    ),
    Plot(
        "along",
        "Decode along the run",
        "Tokens per second of each repetition of a cell. A line that falls is heat, a leak of memory or another "
        "client; the hosts below show which. Where repetitions are drawn together, the line is their mean and the band "
        "their extremes.",
        along.decode,
    ),
    Plot(
        "host",
        "The hosts along the run",
        "The line is the mean of the samples in a part of the time, the band their smallest and largest value, which "
        "are also above each panel. Every second cell of a single run is shaded. A triangle marks the beginning of a "
        "throttling.",
        along.hosts,
    ),
)


def drawn(runs: Runs) -> list[tuple[Plot, Drawn]]:
    """Return the plots that the runs have data for, in their order on the page."""
    return [(plot, made) for plot in ALL if (made := plot.draw(runs))]
