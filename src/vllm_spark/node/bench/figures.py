"""Compute the figures of one run from its traces. docs/reference/bench.md has each definition with its source."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.node.bench.chunks import Arrival, Chunk
from vllm_spark.node.bench.counters import Speculation
from vllm_spark.node.bench.records import UNITS, Figure
from vllm_spark.node.bench.stream import percentile
from vllm_spark.node.bench.trace import Trace

# The shortest steady window that is measured. A chunk more or less is then below 1 % at 100 chunks a second.
MIN_WINDOW_S = 1.0
GAP_PERCENT = 99
# Fewer chunks are joined by chance, if the client or a server of many streams is busy for a moment.
MOST_JOINED = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a stream that arrived after its first tokens, and the time in seconds that they took."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def joined(trace: Trace) -> bool:
    """Return True if something on the way holds chunks back: the first one came with others, or many did."""
    found = trace.arrivals
    chunks = sum(one.chunks for one in found)
    return len(found) > 1 and (found[0].chunks > 1 or chunks - len(found) > MOST_JOINED * chunks)


def span(found: Sequence[Arrival]) -> Span | None:
    """Return the decode span of arrivals, from the first to the last of them. None: fewer than two."""
    if len(found) < 2:  # noqa: PLR2004 - a span has two ends
        return None
    return Span(sum(one.tokens for one in found[1:]), found[-1].at - found[0].at)


def window(traces: Sequence[Trace]) -> tuple[float, float] | None:
    """Return the steady window: from the moment when every stream has sent a token until the first stream ends.

    Times are those of time.perf_counter(). None: there is no moment in which all streams decode, or it is shorter than
    MIN_WINDOW_S.
    """
    times = [[trace.sent + one.at for one in trace.arrivals] for trace in traces]
    if not all(times):
        return None
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    return (begin, end) if end - begin >= MIN_WINDOW_S else None


def spans(traces: Sequence[Trace]) -> list[Span]:
    """Return the decode span of each stream; of several streams within their steady window. Empty: there is none, or
    a stream's tokens are only estimated.

    A stream's span begins and ends at arrivals of its own, so that one that the window cuts changes nothing.
    """
    bounds = window(traces) if len(traces) > 1 else (-math.inf, math.inf)
    if bounds is None or any(trace.estimated for trace in traces):
        return []
    inside = [[one for one in trace.arrivals if bounds[0] <= trace.sent + one.at <= bounds[1]] for trace in traces]
    found = [span(each) for each in inside]
    return [] if None in found else [one for one in found if one]


def gaps_ms(traces: Sequence[Trace]) -> list[float]:
    """Return the time between one arrival and the next of every stream."""
    pairs = (pair for trace in traces for pair in itertools.pairwise(trace.arrivals))
    return [1000 * (after.at - before.at) for before, after in pairs]


def of_run(traces: Sequence[Trace], speculation: Speculation | None) -> dict[str, Any]:
    """Return metric -> value of one run, whose streams were sent together. A metric that it does not have is missing.

    `speculation` has the engine's counters of this run, None without a drafter or without counters.
    """
    values: dict[str, Any] = {
        "first_chunk": _mean_ms(traces, lambda chunk: True),
        "first_token": _mean_ms(traces, lambda chunk: chunk.has_token),
        "first_answer": _mean_ms(traces, lambda chunk: bool(chunk.content)),
        "request": statistics.mean(trace.ended - trace.sent for trace in traces),
        "output": statistics.mean(trace.tokens for trace in traces),
        "prompt": _mean([trace.prompt for trace in traces]),
        "lag": max(trace.lag_ms for trace in traces),
    }
    found = spans(traces)
    if len(traces) == 1:
        values["prefill"] = prefill(traces[0])
    else:
        values["total"] = sum(one.rate for one in found) if found else None
        seconds = max(trace.ended for trace in traces) - min(trace.sent for trace in traces)
        values["queue"] = sum(trace.tokens for trace in traces) / seconds
    values["decode"] = statistics.mean(one.rate for one in found) if found else None
    if gaps := gaps_ms(traces):
        values["longest_gap"], values["gap_p99"] = max(gaps), percentile(gaps, GAP_PERCENT)
    if any(trace.hidden for trace in traces):
        values["first_token"] = values["prefill"] = None
    if speculation:
        values["tokens_per_step"] = speculation.tokens_per_step
        values["acceptance"] = speculation.acceptance
        values["acceptance_by_position"] = list(speculation.by_position) or None
    if found:
        values["step"] = 1000 * (speculation.tokens_per_step if speculation else 1.0) / values["decode"]
    return {name: value for name, value in values.items() if value is not None}


def prefill(trace: Trace) -> float | None:
    """Return the prompt tokens per second until the first token, without cached tokens. None without usage.

    A chunk without a token, such as that of the role, may come before the prompt is read.
    """
    first = next((chunk.at for chunk in trace.chunks if chunk.has_token), 0.0)
    if trace.prompt is None or first <= 0:
        return None
    return (trace.prompt - (trace.cached or 0)) / first


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
    mean = _mean(firsts)
    return None if mean is None else 1000 * mean


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None
