"""A request and its stream: the chunks of a recording with their times, what the server counts, and what went wrong."""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from itertools import pairwise

from vllm_spark.node.bench import chunks
from vllm_spark.node.bench.chunks import Arrival, Chunk, ErrorEventError
from vllm_spark.node.bench.reader import DONE, Event, Reader, quote
from vllm_spark.node.bench.stream import Recording

# The largest share of tokens without a text of their own that is a bound beside the decode: bytes of a character that
# are held back until it is whole, and `<think>`.
MOST_UNSEEN = 0.05


@dataclass
class Trace:
    """One request and its stream. Counts are in tokens, None if the server does not report them. What is computed from
    the chunks is computed once, when all of them are there.

    `error` is empty or (id of a reason, text): `status-429`, `refused`, `broken-reply`, `no-stream`, `cut`, `stalled`,
    `endless`, `error-event`. `retry_s` is how long the server asks to wait, None if it does not. `lag_ms` is how late
    the client itself was.
    """

    sent: float
    ended: float
    chunks: list[Chunk] = field(default_factory=list)
    prompt: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    completion: int | None = None
    finish: str = ""
    error: tuple[str, str] | None = None
    retry_s: float | None = None
    lag_ms: float = 0.0

    @property
    def whole(self) -> bool:
        """True if the answer has come to its end, whatever ends its stream: it has a finish reason and a usage."""
        return bool(self.finish) and self.completion is not None

    @cached_property
    def ids(self) -> list[int] | None:
        """All token ids of the answer, or None if a chunk with text has none."""
        if any(chunk.ids is None and chunk.has_token for chunk in self.chunks):
            return None
        return [one for chunk in self.chunks for one in chunk.ids or ()]

    @cached_property
    def arrivals(self) -> list[Arrival]:
        """The arrivals of the stream's tokens."""
        return chunks.arrivals(self.chunks, has_ids=self.ids is not None)

    @property
    def text(self) -> str:
        """The text of the answer. Of a server that repeats the text so far in each chunk it is the last one."""
        texts = [one for chunk in self.chunks if (one := chunk.reasoning + chunk.content)]
        grows = len(texts) > 2 and all(after.startswith(before) for before, after in pairwise(texts))  # noqa: PLR2004
        return texts[-1] if grows and len(texts[-1]) > len(texts[0]) else "".join(texts)

    @property
    def tokens(self) -> int:
        """The tokens of the answer: of the ids, else of the usage, else of the chunks with a token."""
        if (ids := self.ids) is not None:
            return len(ids)
        return self.token_chunks if self.completion is None else self.completion

    @property
    def token_chunks(self) -> int:
        return sum(chunk.has_token for chunk in self.chunks)

    @property
    def unseen(self) -> int:
        """The tokens without a chunk, of a server without token ids.

        The token that ends an answer by itself has no text, so one that has `stop` as its reason may lack one chunk.
        """
        if self.ids is not None or self.completion is None:
            return 0
        return max(0, self.completion - self.token_chunks - (self.finish == "stop"))

    @property
    def estimated(self) -> bool:
        """True if so many tokens have no chunk of their own that nobody knows how many each chunk has."""
        return self.unseen > MOST_UNSEEN * self.tokens

    @property
    def hidden(self) -> bool:
        """True if the answer began with reasoning that has no chunk: its first token is not known."""
        return self.estimated and bool(self.reasoning) and not any(chunk.reasoning for chunk in self.chunks)


def read(recording: Recording) -> Trace:
    """Return the trace of a recording. A fault of the server is its `error`."""
    reader = recording.reader
    trace = Trace(recording.sent, recording.ended, lag_ms=recording.lag_ms, retry_s=_retry_s(reader))
    if reader.status == HTTPStatus.OK and not reader.problem:
        for event in reader.events:
            if trace.error is None:
                _add(trace, event)
    trace.error = trace.error or _fault(recording, trace)
    return trace


def _add(trace: Trace, event: Event) -> None:
    try:
        for document in chunks.documents(event):
            if usage := chunks.usage(document):
                trace.prompt, trace.completion, trace.cached = usage.prompt, usage.completion, usage.cached
                trace.reasoning = usage.reasoning
            for chunk in chunks.of(document, event.at - trace.sent):
                trace.finish = chunk.finish or trace.finish
                trace.chunks.append(chunk)
                if chunk.fault:
                    trace.error = ("error-event", f"the answer ended with {chunk.fault}")
    except ErrorEventError as error:
        if not (trace.whole and event.data.strip().upper() == DONE):
            trace.error = ("error-event", str(error))


def _fault(recording: Recording, trace: Trace) -> tuple[str, str] | None:
    """Return why a stream does not count: the reply is none, or the stream did not come to its end."""
    reader = recording.reader
    if refused := _refused(recording):
        return refused
    if recording.reason and not reader.problem:
        return recording.reason, recording.error
    if missing := _no_stream(reader, trace):
        return "no-stream", missing
    if reader.end == "done" or (reader.end == "whole" and trace.finish) or (reader.end == "closed" and trace.whole):
        return None
    return "cut", recording.error or f"the stream ended without [DONE] after {len(trace.chunks)} chunks"


def _refused(recording: Recording) -> tuple[str, str] | None:
    """Return why there is no response with status 200."""
    reader = recording.reader
    if reader.end == "broken":
        return "broken-reply", reader.problem
    if reader.status == 0:
        return recording.reason or "refused", recording.error or "the connection ended before a response"
    return None if reader.status == HTTPStatus.OK else (f"status-{reader.status}", quote(reader.body))


def _no_stream(reader: Reader, trace: Trace) -> str:
    """Return why a response that has ended is no stream of tokens, or an empty text."""
    if reader.problem or reader.end == "cut":
        return reader.problem
    if reader.events:
        return "" if trace.token_chunks else "the stream has no token"
    return f"{reader.fields.get('content-type', 'no type')}, no event: {quote(reader.body)}"


def _retry_s(reader: Reader) -> float | None:
    """Return the seconds of Retry-After (RFC 9110, 10.2.3): a number, or the time until a date."""
    value = reader.fields.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except (ValueError, OverflowError):
        return None
