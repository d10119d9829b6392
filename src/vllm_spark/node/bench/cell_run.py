"""Measure one cell: warm up, then repeat its run until the figures agree or the maximum is reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_spark.node.bench import counters, faults, figures
from vllm_spark.node.bench.observation import Answer, Counters, Observation
from vllm_spark.node.bench.records import Cell, Fault, Figure, Sample
from vllm_spark.node.bench.server import CounterReader, Server
from vllm_spark.node.bench.stream import Watch, no_watch
from vllm_spark.node.bench.trace import Trace

# Output tokens of a warm-up: enough for the drafter and the sampler to compile.
WARM_UP_TOKENS = 16

Messages = Sequence[Mapping[str, Any]]
State = Literal["measured", "failed", "worthless"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When a cell ends: after `least_runs` whose leading metric has a spread of `spread` or less, or after `most_runs`.

    `warm_up` runs come before and are not counted. With `hours`, all cells are repeated until that time has passed.
    """

    least_runs: int = 3
    most_runs: int = 7
    spread: float = 0.01
    warm_up: int = 1
    hours: float | None = None


@dataclass(slots=True)
class Result:
    """The outcome of a cell. `figures` is empty unless the state is `measured`."""

    state: State = "measured"
    runs: int = 0
    figures: dict[str, Figure] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the client itself cannot see: the hosts' samples of this cell so far, and the name of each host's GPU.

    `accepted` has the ids of faults that do not make a cell worthless.
    """

    samples: Callable[[], Mapping[str, Sequence[Sample]]] = dict
    gpus: Mapping[str, str] = field(default_factory=dict)
    accepted: Collection[str] = ()


@dataclass(slots=True)
class _Seen:
    """Everything that was seen since the first run of a cell."""

    before: Counters
    after: Counters
    requests: int = 0
    during: list[Counters] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    first_chunks_s: list[float] = field(default_factory=list)
    one_chunk_runs: list[int] = field(default_factory=list)
    short_runs: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell with everything that its measurement needs.

    `prompt(run, stream)` returns the messages of one request; the runs of the warm-up are -1, -2 …
    """

    server: Server
    cell: Cell
    rules: Rules
    prompt: Callable[[int, int], Messages]
    around: Surroundings
    watch: Watch = no_watch

    def measure(self) -> Result:
        """Return the result. A server that refuses, dies or stalls makes a failed cell with the reason."""
        result = Result()
        earlier = self.server.settled({}, 0)
        for number in range(self.rules.warm_up):
            if errors := _errors(self._send(-1 - number, min(WARM_UP_TOKENS, self.cell["output"]))):
                return Result("failed", faults=errors)
        values: dict[str, list[Any]] = {}
        first = self.server.settled(earlier, self.rules.warm_up * self.cell["streams"])
        seen = _Seen(first, first)
        while result.runs < self.rules.most_runs and not self._agree(values):
            before = seen.after
            traces = self._observe(result.runs, seen)
            if errors := _errors(traces):
                return Result("failed", result.runs, faults=errors)
            result.runs += 1
            result.faults = self._faults(seen)
            if faults.worthless(result.faults, self.around.accepted):
                return Result("worthless", result.runs, faults=result.faults)
            moved = counters.difference(before, seen.after)
            for metric, value in figures.of_run(traces, counters.speculation(moved)).items():
                values.setdefault(metric, []).append(value)
        # A metric that a run does not have would be the median of other runs than its neighbours.
        result.figures = {
            metric: figures.figure(metric, several) for metric, several in values.items() if len(several) == result.runs
        }
        return result

    def _observe(self, run: int, seen: _Seen) -> list[Trace]:
        with CounterReader(self.server) as reader:
            traces = self._send(run, self.cell["output"])
        seen.after = self.server.settled(seen.after, sum(1 for trace in traces if not trace.error))
        seen.during += reader.readings
        seen.requests += len(traces)
        seen.answers += map(_answer, traces)
        if any(figures.span(trace) is None and trace.chunks for trace in traces):
            seen.one_chunk_runs.append(run + 1)
        elif len(traces) > 1 and figures.window(traces) is None:
            seen.short_runs.append(run + 1)
        if firsts := [trace.chunks[0].at for trace in traces if trace.chunks]:
            seen.first_chunks_s.append(statistics.mean(firsts))
        return traces

    def _send(self, run: int, output: int) -> list[Trace]:
        prompts = [self.prompt(run, stream) for stream in range(self.cell["streams"])]
        bodies = [self.server.body(messages, output, self.cell["sampling"]) for messages in prompts]
        return self.server.send(bodies, self.watch)

    def _faults(self, seen: _Seen) -> list[Fault]:
        return faults.find(
            Observation(
                before=seen.before,
                after=seen.after,
                requests=seen.requests,
                streams=self.cell["streams"],
                output=self.cell["output"],
                during=seen.during,
                answers=seen.answers,
                samples=self.around.samples(),
                gpus=self.around.gpus,
                first_chunks_s=seen.first_chunks_s,
                one_chunk_runs=seen.one_chunk_runs,
                short_runs=seen.short_runs,
            )
        )

    def _agree(self, values: Mapping[str, list[Any]]) -> bool:
        """Return True after enough runs whose leading metric has a small spread."""
        leading = values.get(leading_metric(self.cell), [])
        spread = figures.spread(leading)
        return len(leading) >= self.rules.least_runs and spread is not None and spread <= self.rules.spread


def leading_metric(cell: Cell) -> str:
    """Return the metric whose spread ends the repetition of a cell."""
    if cell["output"] == 1:
        return "first_chunk"
    return "total" if cell["streams"] > 1 else "decode"


def _errors(traces: Sequence[Trace]) -> list[Fault]:
    """Return the faults of the requests that failed, each reason once with the number of its requests."""
    failed = [trace.error for trace in traces if trace.error]
    first: dict[str, str] = {}
    for reason, text in failed:
        first.setdefault(reason, text)
    numbers = {reason: sum(1 for other, _ in failed if other == reason) for reason in first}
    return [
        {"id": reason, "what": f"{numbers[reason]} of {len(traces)} requests: {text}"} for reason, text in first.items()
    ]


def _answer(trace: Trace) -> Answer:
    return Answer(trace.text, trace.ids, trace.completion, trace.prompt, trace.cached)
