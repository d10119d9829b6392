"""Requests that arrive together: time to the first token, and decode of each stream while prompts are computed. Pure.

An engine spends each step on a token of every sequence that decodes, and on as many tokens of the waiting prompts, in
their order, as max-num-batched-tokens leaves. Every such step takes longer, so a stream decodes slower while the
prompts of others are computed. The same requests come again as soon as they end, `rounds` times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import mean

from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import roofline
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.layout import Layout
from vllm_spark.sizing.load import Load

# vLLM's max-num-batched-tokens of the public measurements, and its max-num-seqs.
BATCHED, SEQUENCES = 8192, 256

# Decoding is cut into so many parts, in each of which the context counts as constant.
PARTS = 8


@dataclass(frozen=True, slots=True)
class Requests:
    """`streams` requests at once, each with `prompt` tokens after `depth` cached ones, and `output` tokens."""

    streams: int
    prompt: int
    output: int
    depth: int = 0
    rounds: int = 1
    batched: int = BATCHED
    sequences: int = SEQUENCES


@dataclass(frozen=True, slots=True)
class Served:
    """What the requests saw. Speeds are in tok/s; `decode` is the mean of the streams, without their prompts.

    `total` is the output of all over the whole time. `after_first` is that of llama-benchy: the output without the
    first token of each, over the time since the first token of the first (eugr/llama-benchy, results.py).
    """

    first_token_s: float
    decode: float
    total: float
    after_first: float


@dataclass(slots=True)
class _Request:
    arrived: float
    left: int
    tokens: float = 0.0
    first: float = 0.0
    round: int = 1


@dataclass(slots=True)
class _Engine:
    """The engine at one time: requests that wait, whose prompt is computed, and that decode."""

    requests: Requests
    seconds: Callable[[int, int, int, int], float]
    tokens: float
    now: float = 0.0
    first: float = 0.0
    waiting: list[_Request] = field(default_factory=list)
    decoding: list[_Request] = field(default_factory=list)
    ended: list[tuple[float, float, int]] = field(default_factory=list)

    def run(self) -> None:
        """Serve every request of every round."""
        self.waiting = [_Request(0.0, self.requests.prompt) for _ in range(self.requests.streams)]
        while self.waiting or self.decoding:
            room = self.requests.sequences - len(self.decoding)
            self._mixed() if self.waiting and room > 0 else self._decode()
            self._end()

    def _mixed(self) -> None:
        """Compute one step with a part of the prompts."""
        budget = max(1, self.requests.batched - len(self.decoding))
        before, chosen, started = self.requests.prompt - self.waiting[0].left, 0, []
        room = self.requests.sequences - len(self.decoding)
        for request in self.waiting[:room]:
            # Prompts are a few tokens shorter or longer than reported: a rest that small does not take a step.
            room_left = budget - chosen
            part = request.left if request.left - room_left <= len(self.decoding) else min(room_left, request.left)
            request.left -= part
            chosen += part
            if not request.left:
                started.append(request)
            if chosen >= budget:
                break
        self.now += self.seconds(len(self.decoding), self._context(), chosen, self.requests.depth + before)
        for request in self.decoding:
            request.tokens += self.tokens
        if started and not self.first:
            self.first = self.now
        for request in started:
            request.first, request.tokens = self.now, 1.0
            self.waiting.remove(request)
            self.decoding.append(request)

    def _decode(self) -> None:
        """Decode until the next request ends, or for a part of its output."""
        nearest = max(request.tokens for request in self.decoding)
        steps = max(1.0, min(self.requests.output - nearest, self.requests.output / PARTS) / self.tokens)
        self.now += steps * self.seconds(len(self.decoding), self._context(), 0, 0)
        for request in self.decoding:
            request.tokens += steps * self.tokens

    def _context(self) -> int:
        if not self.decoding:
            return 0
        return int(self.requests.depth + self.requests.prompt + mean(request.tokens for request in self.decoding))

    def _end(self) -> None:
        for request in [entry for entry in self.decoding if entry.tokens >= self.requests.output - 1e-6]:
            self.decoding.remove(request)
            spent = self.now - request.first
            self.ended.append((request.first - request.arrived, spent, request.round))
            if request.round < self.requests.rounds:
                self.waiting.append(_Request(self.now, self.requests.prompt, round=request.round + 1))


def serve(architecture: Architecture, layout: Layout, load: Load, requests: Requests, constants: Constants) -> Served:
    """Return what the requests saw. `load` has ranks, cache width, drafter and eager; its streams are ignored."""
    known: dict[tuple[int, int, int, int], float] = {}

    def seconds(streams: int, context: int, prompt: int, before: int) -> float:
        key = (streams, context // 64, prompt, before)
        if key not in known:
            now = replace(load, streams=streams, context=context, prompt=prompt, before=before)
            known[key] = roofline.step(architecture, layout, now, constants).total_s
        return known[key]

    engine = _Engine(requests, seconds, load.drafter.tokens_per_step if load.drafter else 1.0)
    engine.run()
    counted = [entry for entry in engine.ended if entry[2] > 1] if requests.rounds > 1 else engine.ended
    return Served(
        first_token_s=constants.first_token_s + mean(first for first, _, _ in counted),
        decode=mean((requests.output - 1) / max(spent, 1e-9) for _, spent, _ in counted),
        total=len(engine.ended) * requests.output / engine.now,
        after_first=len(engine.ended) * (requests.output - 1) / max(engine.now - engine.first, 1e-9),
    )
