"""Compute the figures of one run from its traces. docs/reference/bench.md has each definition with its source."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.node.bench.counters import Speculation
from vllm_spark.node.bench.records import UNITS, Figure
from vllm_spark.node.bench.trace import Chunk, Trace

# The shortest steady window that is measured. A chunk more or less is then below 1 % at 100 chunks a second.
MIN_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a stream that arrived after its first token chunk, and the time in seconds that they took."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def counts(trace: Trace) -> list[float]:
    """Return the number of tokens of each chunk.

    They are the numbers of token ids. A server without token ids reports only the total, so that every chunk with text
    counts for the same share of it.
    """
    if trace.ids is not None:
        return [float(len(chunk.ids or ())) for chunk in trace.chunks]
    texts = [chunk.has_token for chunk in trace.chunks]
    total = trace.completion if trace.completion is not None else sum(texts)
    return [total / sum(texts) if has_token else 0.0 for has_token in texts]


def span(trace: Trace) -> Span | None:
    """Return the decode span of a stream, from its first to its last chunk with a token. None: fewer than two."""
    arrivals = [(chunk.at, count) for chunk, count in zip(trace.chunks, counts(trace), strict=True) if count]
    if len(arrivals) < 2 or arrivals[-1][0] <= arrivals[0][0]:  # noqa: PLR2004 - a span has two ends
        return None
    return Span(sum(count for _, count in arrivals[1:]), arrivals[-1][0] - arrivals[0][0])


def window(traces: Sequence[Trace]) -> tuple[float, float] | None:
    """Return the steady window: from the moment when every stream has sent a token until the first stream ends.

    Times are those of time.perf_counter(). None: there is no moment in which all streams decode, or it is shorter than
    MIN_WINDOW_S.
    """
    arrivals = [[trace.sent + chunk.at for chunk in trace.chunks if chunk.has_token] for trace in traces]
    if not all(arrivals):
        return None
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    return (begin, end) if end - begin >= MIN_WINDOW_S else None


def steady_spans(traces: Sequence[Trace]) -> list[Span]:
    """Return the span of each stream within the steady window; empty without one.

    A stream's span begins and ends at chunks of its own, so that a chunk that the window cuts changes nothing.
    """
    bounds = window(traces)
    if bounds is None:
        return []
    spans = []
    for trace in traces:
        inside = [
            (trace.sent + chunk.at, count)
            for chunk, count in zip(trace.chunks, counts(trace), strict=True)
            if count and bounds[0] <= trace.sent + chunk.at <= bounds[1]
        ]
        if len(inside) < 2 or inside[-1][0] <= inside[0][0]:  # noqa: PLR2004 - a span has two ends
            return []
        spans.append(Span(sum(count for _, count in inside[1:]), inside[-1][0] - inside[0][0]))
    return spans


def of_run(traces: Sequence[Trace], speculation: Speculation | None) -> dict[str, Any]:
    """Return metric -> value of one run, whose streams were sent together. A metric that it does not have is missing.

    `speculation` has the engine's counters of this run, None without a drafter or without counters.
    """
    values: dict[str, Any] = {
        "first_chunk": _mean_ms(traces, lambda chunk: True),
        "first_token": _mean_ms(traces, lambda chunk: chunk.has_token),
        "first_answer": _mean_ms(traces, lambda chunk: bool(chunk.content)),
        "request": statistics.mean(trace.ended - trace.sent for trace in traces),
        "output": statistics.mean(sum(counts(trace)) for trace in traces),
    }
    if len(traces) == 1:
        spans = [one] if (one := span(traces[0])) else []
        values["prefill"] = prefill(traces[0])
    else:
        spans = steady_spans(traces)
        values["total"] = sum(one.rate for one in spans) if spans else None
    values["decode"] = statistics.mean(one.rate for one in spans) if spans else None
    if speculation:
        values["tokens_per_step"] = speculation.tokens_per_step
        values["acceptance"] = speculation.acceptance
        values["acceptance_by_position"] = list(speculation.by_position) or None
    if spans:
        values["step"] = 1000 * (speculation.tokens_per_step if speculation else 1.0) / values["decode"]
    return {name: value for name, value in values.items() if value is not None}


def prefill(trace: Trace) -> float | None:
    """Return the prompt tokens per second until the first chunk, without cached tokens. None without usage."""
    if trace.prompt is None or not trace.chunks or trace.chunks[0].at <= 0:
        return None
    return (trace.prompt - (trace.cached or 0)) / trace.chunks[0].at


def figure(metric: str, values: Sequence[Any]) -> Figure:
    """Return the figure of a metric from its values, one per run. Shares by position are summarised by position."""
    if isinstance(values[0], list):
        shortest = min(map(len, values))
        columns = [[value[position] for value in values] for position in range(shortest)]
        return {
            "unit": UNITS[metric],
            "median": [statistics.median(column) for column in columns],
            "spread": None,
            "values": list(values),
        }
    return {
        "unit": UNITS[metric],
        "median": statistics.median(values),
        "spread": spread(values),
        "values": list(values),
    }


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation divided by the mean; None for fewer than two values."""
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return None
    mean = statistics.mean(values)
    return statistics.stdev(values) / mean if mean else None


def _mean_ms(traces: Sequence[Trace], wanted: Callable[[Chunk], bool]) -> float | None:
    """Return the mean time in ms of the first wanted chunk of each stream; None if a stream has none."""
    firsts = [next((chunk.at for chunk in trace.chunks if wanted(chunk)), None) for trace in traces]
    known = [at for at in firsts if at is not None]
    return 1000 * statistics.mean(known) if known and len(known) == len(firsts) else None
