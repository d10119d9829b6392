"""Recordings of streamed chat completions from a script, without sockets: what arrives when is exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fakes.scripted_engine import Event, Stream, chunk_of
from vllm_spark.node.bench import trace
from vllm_spark.node.bench.stream import Recording
from vllm_spark.node.bench.trace import Trace

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(content: bytes) -> bytes:
    """Return a frame of a chunked transfer."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(document: dict[str, Any] | str) -> bytes:
    """Return an event in a frame."""
    text = document if isinstance(document, str) else json.dumps(document)
    return frame(b"data: " + text.encode() + b"\n\n")


def recording(stream: Stream, sent: float = 100.0) -> Recording:
    """Return the recording of a stream whose pieces arrive exactly at the script's times."""
    pieces = [(sent, HEAD), *((sent + one.at, event(chunk_of(one))) for one in stream.events)]
    last = pieces[-1][0]
    if stream.usage is not None:
        pieces.append((last, event({"choices": [], "usage": stream.usage})))
    if stream.ending == "done":
        pieces += [(last, event("[DONE]")), (last, b"0\r\n\r\n")]
    return recorded(pieces, sent, last)


def recorded(pieces: Sequence[tuple[float, bytes]], sent: float, ended: float, error: str = "") -> Recording:
    """Return the recording of pieces that arrived at times; its connection has ended."""
    found = Recording(sent, ended=ended, error=error)
    for at, piece in pieces:
        found.reader.feed(at, piece)
    found.reader.close()
    return found


def read(stream: Stream, sent: float = 100.0) -> Trace:
    """Return the trace of a stream."""
    return trace.read(recording(stream, sent))


def steady(count: int, *, first: float, gap: float, per_chunk: int = 1, reasoning: int = 0) -> list[Event]:
    """Return `count` events, the first at `first` s, then one each `gap` s; the first `reasoning` of them reason."""
    events: list[Event] = []
    for index in range(count):
        tokens = [1000 + index * per_chunk + one for one in range(per_chunk)]
        text = f" w{index}" * per_chunk
        texts = {"reasoning": text} if index < reasoning else {"content": text}
        events.append(Event(first + index * gap, tokens, **texts))
    return events


def without_ids(events: Sequence[Event]) -> list[Event]:
    """Return the events of a server that sends no token ids."""
    return [replace(one, ids=None) for one in events]


def usage(events: Sequence[Event], prompt: int = 500, **details: int) -> dict[str, Any]:
    """Return the usage of a stream that counts right."""
    completion = sum(len(one.ids or (0,)) for one in events)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details or None}
