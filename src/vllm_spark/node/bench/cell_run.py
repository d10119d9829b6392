"""Measure one cell: warm up, then repeat its run until the figures agree or the maximum is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_spark.node.bench import counters, figures
from vllm_spark.node.bench.records import Cell, Fault, Figure
from vllm_spark.node.bench.server import Server
from vllm_spark.node.bench.stream import Watch, no_watch
from vllm_spark.node.bench.trace import Trace

# Output tokens of a warm-up: enough for the drafter and the sampler to compile.
WARM_UP_TOKENS = 16

Messages = Sequence[Mapping[str, Any]]
State = Literal["measured", "failed", "worthless"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Repetition of a cell: at least `min_runs`, then until the spread of its leading metric is at most `spread`."""

    min_runs: int = 3
    max_runs: int = 7
    spread: float = 0.01


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of a cell: its traces, and the engine's counters around it (empty without /metrics)."""

    cell: Cell
    traces: Sequence[Trace]
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(slots=True)
class Result:
    """The outcome of a cell. `figures` is empty unless the state is `measured`."""

    state: State = "measured"
    runs: int = 0
    figures: dict[str, Figure] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell with everything that its measurement needs.

    `prompt(run, stream)` returns the messages of one request; run -1 is the warm-up. `judge` returns the faults of a
    run, any of which makes the cell worthless.
    """

    server: Server
    cell: Cell
    rules: Rules
    prompt: Callable[[int, int], Messages]
    judge: Callable[[Observation], list[Fault]]
    watch: Watch = no_watch

    def measure(self) -> Result:
        """Return the result. A server that refuses, dies or stalls makes a failed cell with the reason."""
        result = Result()
        if faults := _errors(self._send(-1, min(WARM_UP_TOKENS, self.cell["output"]))):
            return Result("failed", faults=faults)
        values: dict[str, list[Any]] = {}
        while result.runs < self.rules.max_runs and not self._agree(values):
            observation = self._observe(result.runs)
            if faults := _errors(observation.traces):
                return Result("failed", result.runs, faults=faults)
            if faults := self.judge(observation):
                return Result("worthless", result.runs + 1, faults=faults)
            moved = counters.difference(observation.before, observation.after)
            for metric, value in figures.of_run(observation.traces, counters.speculation(moved)).items():
                values.setdefault(metric, []).append(value)
            result.runs += 1
        # A metric that a run does not have would be the median of other runs than its neighbours.
        result.figures = {
            metric: figures.figure(metric, several) for metric, several in values.items() if len(several) == result.runs
        }
        return result

    def _observe(self, run: int) -> Observation:
        before = self.server.counters()
        traces = self._send(run, self.cell["output"])
        return Observation(self.cell, traces, before, self.server.counters())

    def _send(self, run: int, output: int) -> list[Trace]:
        prompts = [self.prompt(run, stream) for stream in range(self.cell["streams"])]
        bodies = [self.server.body(messages, output, self.cell["sampling"]) for messages in prompts]
        return self.server.send(bodies, self.watch)

    def _agree(self, values: Mapping[str, list[Any]]) -> bool:
        """Return True after enough runs whose leading metric has a small spread."""
        leading = values.get(leading_metric(self.cell), [])
        spread = figures.spread(leading)
        return len(leading) >= self.rules.min_runs and spread is not None and spread <= self.rules.spread


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
