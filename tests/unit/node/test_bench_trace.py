"""Streams are parsed with the arrival time of each event, however the network cuts them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from bench_streams import HEAD, event, frame, read, recorded, steady, usage
from fakes.scripted_engine import Event, Stream, chunk_of
from vllm_spark.node.bench import figures, reader, trace

EVENTS = steady(5, first=0.2, gap=0.05, per_chunk=2)


def test_every_event_has_its_time_and_tokens() -> None:
    parsed = read(Stream([Event(0.1, []), *EVENTS], usage(EVENTS, cached_tokens=16)))
    assert parsed.error is None
    assert [chunk.at for chunk in parsed.chunks] == pytest.approx([0.1, 0.2, 0.25, 0.3, 0.35, 0.4])
    assert [chunk.has_token for chunk in parsed.chunks] == [False, *[True] * 5]
    assert parsed.ids == list(range(1000, 1010))
    assert (parsed.prompt, parsed.cached, parsed.completion) == (500, 16, 10)
    assert parsed.text == " w0 w0 w1 w1 w2 w2 w3 w3 w4 w4"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_the_cuts_of_the_network_change_nothing(size: int) -> None:
    content = HEAD + b"".join(event(chunk_of(one)) for one in EVENTS)
    content += event({"choices": [], "usage": usage(EVENTS)}) + event("[DONE]") + b"0\r\n\r\n"
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    parsed = trace.read(recorded([(101.0, part) for part in parts], 100.0, 101.0))
    assert parsed.error is None
    assert parsed.ids == list(range(1000, 1010))
    assert parsed.completion == 10


def test_a_response_without_frames_is_read() -> None:
    plain = b"HTTP/1.1 200 OK\r\n\r\n"
    pieces = [
        (100.0, plain),
        (100.5, b'data: {"choices": [{"delta": {"content": "x"}}]}\n'),
        (100.6, b"\ndata: [DONE]\n"),
    ]
    parsed = trace.read(recorded(pieces, 100.0, 100.6))
    assert parsed.error is None
    assert [chunk.at for chunk in parsed.chunks] == pytest.approx([0.5])
    assert parsed.ids is None


def test_both_names_of_reasoning_and_tool_calls_count_as_text() -> None:
    deltas = [
        {"reasoning": "a"},
        {"reasoning_content": "b"},
        {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ]
    pieces = [event({"choices": [{"delta": delta, "token_ids": [7]}]}) for delta in deltas]
    whole = [(100.0, HEAD), *((100.0 + index, piece) for index, piece in enumerate(pieces)), (103.0, event("[DONE]"))]
    parsed = trace.read(recorded(whole, 100.0, 103.0))
    assert [(chunk.reasoning, chunk.content) for chunk in parsed.chunks] == [("a", ""), ("b", ""), ("", "f{}")]


STATUS = b'HTTP/1.1 %d X\r\nContent-Length: 24\r\n\r\n{"error": "no\n  memory"}'
FAILURES = {
    "too many requests": ([STATUS % 429], "", ("status-429", '{"error": "no memory"}')),
    "engine died": ([STATUS % 500], "", ("status-500", '{"error": "no memory"}')),
    "nothing listens": ([], "[Errno 111] Connect call failed", ("refused", "[Errno 111] Connect call failed")),
    "closed at once": ([], "", ("refused", "the connection ended before a response")),
    "no first byte": ([], "no token for 900 s", ("stalled", "no token for 900 s")),
    "stall in the middle": (
        [HEAD, event('{"choices": []}')],
        "no token for 60 s",
        ("stalled", "no token for 60 s"),
    ),
    "cut in the middle": (
        [HEAD, event({"choices": [{"delta": {"content": "x"}}]})],
        "",
        ("cut", "the stream ended without [DONE] after 1 chunks"),
    ),
    "error event": (
        [HEAD, event({"error": {"message": "EngineCore encountered an issue"}}), event("[DONE]")],
        "",
        ("error-event", '{"error": {"message": "EngineCore encountered an issue"}}'),
    ),
    "not JSON": ([HEAD, event("{nonsense"), event("[DONE]")], "", ("error-event", "an event is not JSON: {nonsense")),
    "a length of 5,000 digits": (
        [b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"],
        "",
        ("broken-reply", "a Content-Length of 5000 digits"),
    ),
    "not HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n"], "", ("broken-reply", "no HTTP: SSH-2.0-OpenSSH_9.6")),
}


@pytest.mark.parametrize(("pieces", "error", "expected"), FAILURES.values(), ids=FAILURES)
def test_a_failed_request_has_its_reason(pieces: list[bytes], error: str, expected: tuple[str, str]) -> None:
    times = itertools.count(100.0)
    whole = recorded([(next(times), piece) for piece in pieces], 100.0, 110.0, error)
    whole.reason = "stalled" if error.startswith("no token") else ""
    parsed = trace.read(whole)
    assert parsed.error is not None
    assert (parsed.error[0], " ".join(parsed.error[1].split())) == expected


def test_a_long_body_is_quoted_in_part() -> None:
    pieces = [(100.0, b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n"), (100.1, frame(b"x" * 5000))]
    parsed = trace.read(recorded(pieces, 100.0, 100.1))
    assert parsed.error is not None
    assert parsed.error[0] == "status-503"
    assert len(parsed.error[1]) <= reader.QUOTED + 1


WHOLE: dict[str, Any] = {
    "object": "chat.completion.chunk",
    "choices": [
        {
            "delta": {
                "content": [{"type": "text", "text": " a"}],
                "reasoning": "b",
                "reasoning_details": [{"type": "reasoning.text", "text": "c"}],
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                "function_call": {"arguments": "{}"},
            },
            "token_ids": [7, 8],
            "finish_reason": "length",
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
        }
    ],
}
VALUES: list[Any] = [None, True, -1, 1.5, "x", [], [1], [[1]], ["x"], [{}], {}, {"a": 1}, {"type": "abort"}]


def changed(document: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the document with each of its members replaced by each value."""
    holder = WHOLE
    for name in path:
        holder = holder[name]
    for name in [*holder] if isinstance(holder, dict) else range(len(holder)):
        for value in VALUES:
            copy = inner = deepcopy(document)
            for one in path:
                inner = inner[one]
            inner[name] = value
            yield copy
        if isinstance(holder[name], dict | list):
            yield from changed(document, (*path, name))


def test_no_type_of_a_member_ends_in_a_traceback() -> None:
    found = 0
    for document in changed(WHOLE):
        pieces = [(100.0, HEAD), (100.5, event(document)), (101.0, event(document)), (101.0, event("[DONE]"))]
        parsed = trace.read(recorded(pieces, 100.0, 101.0))
        assert parsed.ids is None or {type(one) for one in parsed.ids} <= {int}
        assert isinstance(parsed.text, str)
        assert figures.of_run([parsed], None)["request"] == pytest.approx(1.0)
        found += 1
    assert found > 300


def test_an_error_is_quoted() -> None:
    broken = event(
        {"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "Provider disconnected"}}]}
    )
    parsed = trace.read(recorded([(100.0, HEAD), (101.0, broken), (101.0, event("[DONE]"))], 100.0, 101.0))
    assert parsed.error is not None
    assert parsed.error[0] == "error-event"
    assert "Provider disconnected" in parsed.error[1]
