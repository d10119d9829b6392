"""Measure one cell: warm up, then repeat its run until node.bench.repeat says that it is enough."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_spark.node.bench import counters, faults, figures, repeat
from vllm_spark.node.bench.answer_faults import TEMPLATE_TOKENS
from vllm_spark.node.bench.leading import PROMPT_OUTPUT, leading_metrics
from vllm_spark.node.bench.observation import Answer, Observation
from vllm_spark.node.bench.records import Cell, Fault, Figure, Sample
from vllm_spark.node.bench.repeat import Rules
from vllm_spark.node.bench.server import CounterReader, Server
from vllm_spark.node.bench.stream import Watch, no_watch
from vllm_spark.node.bench.trace import Trace

# Output tokens of a warm-up: enough for the drafter and the sampler to compile.
WARM_UP_TOKENS = 16
# Streams that are not together for ENOUGH_S get answers of LONGER_S: a warm-up may be half as fast as a run.
ENOUGH_S, LONGER_S = 1.25 * figures.MIN_WINDOW_S, 2 * figures.MIN_WINDOW_S
# Statuses whose Retry-After is waited for, once a cell: too many requests, and a server that is not ready yet.
RETRIED = ("status-429", "status-503")
MOST_RETRY_S = 300.0
# The prompts of a repeated run are others: the server may have some of the refused one in its cache.
AGAIN = 10_000

Messages = Sequence[Mapping[str, Any]]
State = Literal["measured", "failed", "worthless"]


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


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request with its trace."""

    messages: Messages
    trace: Trace

    @property
    def text(self) -> str:
        return "".join(message["content"] for message in self.messages)


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell with everything that its measurement needs.

    `prompt(run, stream)` returns the messages of one request; the runs of the warm-up are -1, -2 … `comparisons` is the
    number of leading figures of all cells of the run.
    """

    server: Server
    cell: Cell
    rules: Rules
    prompt: Callable[[int, int], Messages]
    around: Surroundings
    watch: Watch = no_watch
    comparisons: int = 1
    waited: list[str] = field(default_factory=list, init=False)

    def measure(self) -> Result:
        """Return the result. A server that refuses, dies or stalls makes a failed cell with the reason."""
        result = Result()
        earlier = self.server.settled({}, 0)
        output = self.cell["output"]
        for number in range(self.rules.warm_up):
            warm, _ = self._send(-1 - number, min(WARM_UP_TOKENS, self.cell["output"]))
            if errors := _errors([one.trace for one in warm]):
                return Result("failed", faults=errors)
            self.server.learn(len(warm[0].text), warm[0].trace.prompt)
            output = self._output([one.trace for one in warm])
        values: dict[str, list[Any]] = {}
        first = self.server.settled(earlier, self.rules.warm_up * self.cell["streams"])
        seen = Observation(first, first, 0, self.cell["streams"], output, gpus=self.around.gpus, waited=self.waited)
        while not repeat.enough(self.rules, result.runs, list(self._leading(values).values()), self.comparisons):
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
        if noisy := repeat.noisy(self.rules, self._leading(values), self.comparisons):
            seen.noisy = noisy
            result.faults = self._faults(seen)
        # A metric that a run does not have would be the median of other runs than its neighbours.
        result.figures = {
            metric: figures.figure(metric, several) for metric, several in values.items() if len(several) == result.runs
        }
        return result

    def _output(self, warm: Sequence[Trace]) -> int:
        """Return the tokens of each answer: those of the cell, or as many as several streams of a fast server need for
        a steady window."""
        own, spans = self.cell["output"], [figures.span(trace.arrivals) for trace in warm]
        fastest = max((one.rate for one in spans if one), default=0.0)
        if len(warm) == 1 or own <= PROMPT_OUTPUT or own >= ENOUGH_S * fastest:
            return own
        wanted, limit = math.ceil(LONGER_S * fastest), self.server.max_model_len
        room = wanted if limit is None else limit - self.cell["depth"] - self.cell["prompt"] - TEMPLATE_TOKENS
        return max(own, min(wanted, room))

    def _observe(self, run: int, seen: Observation) -> list[Trace]:
        with CounterReader(self.server) as reader:
            sent, refused = self._send(run, seen.output)
        traces = [one.trace for one in sent]
        answered = [one for one in (*refused, *sent) if not one.trace.error]
        seen.after = self.server.settled(seen.after, len(answered))
        seen.during += reader.readings
        seen.requests += len(sent) + len(answered) - sum(1 for trace in traces if not trace.error)
        seen.answers += map(self._answer, answered)
        found = [trace.arrivals for trace in traces]
        if any(len(each) == 1 for each in found):
            seen.one_chunk_runs.append(run + 1)
        elif any(map(figures.joined, traces)):
            seen.joined_runs.append(run + 1)
        if len(traces) > 1 and figures.window(traces) is None and run + 1 not in seen.one_chunk_runs:
            seen.short_runs.append(run + 1)
        if firsts := [each[0].at for each in found if each]:
            seen.first_tokens_s.append(statistics.mean(firsts))
        seen.lags_ms.append(max(trace.lag_ms for trace in traces))
        return traces

    def _send(self, run: int, output: int) -> tuple[list[_Sent], list[_Sent]]:
        """Return the requests of a run, and those of an attempt that the server refused for a time that it named."""
        sent = self._post(run, output)
        wait = next((one.trace.retry_s for one in sent if one.trace.error and one.trace.error[0] in RETRIED), None)
        if wait is None or wait > MOST_RETRY_S or self.waited:
            return sent, []
        [fault, *_] = _errors([one.trace for one in sent])
        self.waited.append(f"{fault['id']}, waited {wait:.0f} s as its Retry-After says: {fault['what']}")
        time.sleep(wait)
        return self._post(run + AGAIN if run >= 0 else run - AGAIN, output), sent

    def _post(self, run: int, output: int) -> list[_Sent]:
        prompts = [self.prompt(run, stream) for stream in range(self.cell["streams"])]
        bodies = [self.server.body(messages, output, self.cell["sampling"]) for messages in prompts]
        traces = self.server.send(bodies, self.watch)
        return [_Sent(messages, trace) for messages, trace in zip(prompts, traces, strict=True)]

    def _answer(self, sent: _Sent) -> Answer:
        trace = sent.trace
        return Answer(
            trace.text,
            trace.ids,
            trace.completion,
            trace.prompt,
            trace.cached,
            self.server.count_tokens(sent.text),
            trace.token_chunks,
            trace.unseen,
            trace.estimated,
        )

    def _faults(self, seen: Observation) -> list[Fault]:
        seen.samples, seen.uncounted = self.around.samples(), self.server.uncounted
        return faults.find(seen)

    def _leading(self, values: Mapping[str, list[Any]]) -> dict[str, list[float]]:
        return {metric: values.get(metric, []) for metric in leading_metrics(self.cell)}


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
