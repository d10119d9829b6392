"""Parse the recording of a streamed chat completion into chunks with their times and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.node.bench.stream import Recording

STATUS_OK = 200
QUOTED = 200  # characters of an error's body in a message


@dataclass(frozen=True, slots=True)
class Chunk:
    """An event with `choices`. `at` is in seconds since the request was sent. `ids` is None without token ids."""

    at: float
    reasoning: str
    content: str
    ids: tuple[int, ...] | None

    @property
    def has_token(self) -> bool:
        return bool(self.ids) or bool(self.reasoning) or bool(self.content)


@dataclass(slots=True)
class Trace:
    """One request and its stream. Counts are in tokens, None if the server does not report them.

    `error` is empty or (id of a reason, text): `status-429`, `refused`, `cut`, `stalled`, `error-event`.
    """

    sent: float
    ended: float
    chunks: list[Chunk] = field(default_factory=list)
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    finish: str = ""
    error: tuple[str, str] | None = None

    @property
    def ids(self) -> list[int] | None:
        """All token ids of the answer, or None if a chunk with text has none."""
        if any(chunk.ids is None and chunk.has_token for chunk in self.chunks):
            return None
        return [one for chunk in self.chunks for one in chunk.ids or ()]

    @property
    def text(self) -> str:
        return "".join(chunk.reasoning + chunk.content for chunk in self.chunks)


def read(recording: Recording) -> Trace:
    """Return the trace of a recording. A fault of the server is its `error`."""
    trace = Trace(recording.sent, recording.ended)
    status, body = _split_head(recording.pieces)
    if status == 0:
        reason = "stalled" if recording.error.startswith("nothing arrived") else "refused"
        trace.error = (reason, recording.error or "the connection ended before a response")
        return trace
    if status != STATUS_OK:
        trace.error = (f"status-{status}", quote(b"".join(piece for _, piece in body)))
        return trace
    done = False
    for at, line in _lines(body):
        if line == b"data: [DONE]":
            done = True
        elif line.startswith(b"data:"):
            _add(trace, at - recording.sent, line[5:])
    if trace.error is None and not done:
        reason = "stalled" if recording.error.startswith("nothing arrived") else "cut"
        trace.error = (reason, recording.error or f"the stream ended without [DONE] after {len(trace.chunks)} chunks")
    return trace


def _split_head(pieces: list[tuple[float, bytes]]) -> tuple[int, list[tuple[float, bytes]]]:
    """Return (status, the pieces after the head, without the frames of a chunked transfer); (0, []) without a head."""
    held = b""
    for index, (at, piece) in enumerate(pieces):
        held += piece
        head, separator, rest = held.partition(b"\r\n\r\n")
        if separator:
            fields = head.split(b" ", 2)
            status = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
            body = [(at, rest), *pieces[index + 1 :]]
            chunked = b"transfer-encoding: chunked" in head.lower()
            return status, list(_unframe(body)) if chunked else body
    return 0, []


def _unframe(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield the content of a chunked transfer (RFC 9112, section 7.1) with the arrival time of each part of it."""
    held, left = b"", 0  # left: bytes that are missing of the present frame, with its line end
    for at, piece in pieces:
        held += piece
        while held:
            if left > 2:  # noqa: PLR2004 - the line end after the content
                content, held = held[: left - 2], held[left - 2 :]
                left -= len(content)
                yield at, content
            elif left:
                dropped = min(left, len(held))
                held, left = held[dropped:], left - dropped
            else:
                size, separator, rest = held.partition(b"\r\n")
                if not separator:
                    break
                number = int(size.partition(b";")[0] or b"0", 16)
                held, left = rest, number + 2
                if number == 0:
                    return


def _lines(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield (arrival time of its end, line) of each line that is not empty."""
    held = b""
    for at, piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        yield from ((at, stripped) for line in lines if (stripped := line.strip()))
    if held.strip():
        yield pieces[-1][0], held.strip()


def _add(trace: Trace, at: float, data: bytes) -> None:
    try:
        event = json.loads(data)
    except ValueError:
        trace.error = trace.error or ("error-event", f"an event is not JSON: {quote(data)}")
        return
    if "error" in event:
        trace.error = trace.error or ("error-event", quote(data))
        return
    if usage := event.get("usage"):
        trace.prompt = usage.get("prompt_tokens")
        trace.completion = usage.get("completion_tokens")
        trace.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        trace.finish = choice.get("finish_reason") or trace.finish
        ids: list[int] | None = choice.get("token_ids")
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        content = (delta.get("content") or "") + _tool_text(delta)
        trace.chunks.append(Chunk(at, reasoning, content, None if ids is None else tuple(ids)))


def _tool_text(delta: dict[str, Any]) -> str:
    """Return the text of tool calls in a delta: they are part of the answer."""
    functions = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    return "".join(f"{function.get('name') or ''}{function.get('arguments') or ''}" for function in functions)


def quote(body: bytes) -> str:
    """Return the text of a body in one line, cut after QUOTED characters."""
    text = " ".join(body.decode("utf-8", "replace").split())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"
