"""Clients of owners through a real HAProxy with the site's authority: openai-python, LiteLLM and curl.

`make edge` installs HAProxy. openai-python and LiteLLM are those of tests/router, in a folder of their own.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from listed_client import said, started
from test_streams import events, open_stream, release

from conftest import EVENTS, Start
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import ScriptedEngine, Stream
from router.routers import litellm_packages

MESSAGE = {"role": "assistant", "content": "Cloudy — 12 °C ☁"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "note": "☔ \\\\"}'},
}


def answer(message: Mapping[str, Any]) -> Stream:
    """Return an answer that is not a stream."""
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    fixed = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "model"}
    return Stream(body=json.dumps({**fixed, "choices": [choice], "usage": usage}, ensure_ascii=False, indent=1))


NO_KEY = "No valid API key: send Authorization: Bearer KEY, or x-api-key: KEY."
CHAT, CALLS = answer(MESSAGE), answer({"role": "assistant", "content": None, "tool_calls": [CALL]})
UNKNOWN = Stream(
    status=404,
    body=json.dumps({"error": {"message": "The model `nobody` does not exist.", "type": "NotFoundError", "code": 404}}),
)


def client(edge: RunningEdge, case: str, socket: str = "") -> subprocess.Popen[str]:
    """Start a case of clients.py. With a socket it asks the engine itself."""
    url = "http://engine" if socket else f"https://127.0.0.1:{edge.port}"
    return started("clients.py", litellm_packages(), edge, case, url, KEY, *([socket] if socket else []))


def test_chat_and_tools_arrive_unchanged(start: Start, engine: ScriptedEngine) -> None:
    edge = start()
    engine.streams = [CHAT, CALLS]
    assert said(client(edge, "chat")) == [{"text": MESSAGE["content"], "body": CHAT.body}]
    (seen,) = said(client(edge, "tools"))
    assert seen == {"name": "get_weather", "arguments": CALL["function"]["arguments"], "body": CALLS.body}  # type: ignore[index]
    assert engine.requests[1]["tools"][0]["function"]["description"] == "Wetter — ☔"


def test_a_stream_has_the_gaps_of_the_engine(start: Start, engine: ScriptedEngine) -> None:
    """Prints the gaps; tests/edge/test_streams.py shows without a clock that no event is held back."""
    edge = start()
    (through,) = said(client(edge, "stream"))
    (direct,) = said(client(edge, "stream", str(Path(edge.files.sockets) / "demo" / "api.sock")))
    assert through["texts"] == direct["texts"] == [event.content for event in EVENTS]
    for way, seen in (("edge", through), ("socket", direct)):
        print(
            f"\nopenai-python, events 50 ms apart, {way}: median {seen['median_ms']:.1f}, max {seen['max_ms']:.1f} ms"
        )


def test_a_picture_arrives_and_one_too_large_is_named(start: Start, engine: ScriptedEngine) -> None:
    edge = start()
    engine.streams = [CHAT]
    (sent,) = said(client(edge, "small_picture"))
    received = json.dumps(engine.requests[0]["messages"])
    assert len(received) > 8 << 20
    assert hashlib.sha256(received.encode()).hexdigest() == sent["sha256"]
    refusals = said(client(edge, "large_picture"))
    message = "The body is larger than 16 MiB."
    expected = {"raised": "APIStatusError", "status": 413, "code": "body_too_large", "message": message}
    assert refusals == [expected] * 10
    assert len(engine.requests) == 1


def test_errors_are_those_of_openai(start: Start, engine: ScriptedEngine) -> None:
    engine.streams = [UNKNOWN]
    seen = said(client(start(), "errors"))
    inactive = "other-model is not active: this Spark serves model. Its owner changes that with: "
    assert [(one["raised"], one["status"], one["code"], one["message"]) for one in seen] == [
        ("AuthenticationError", 401, "invalid_api_key", NO_KEY),
        ("NotFoundError", 404, 404, "The model `nobody` does not exist."),
        ("InternalServerError", 503, "model_not_active", f"{inactive}ansible-playbook switch.yml -e to=other"),
        ("NotFoundError", 404, "not_found", "The edge does not serve this path and method."),
    ]


def test_a_busy_key_is_a_rate_limit_error_that_is_repeated(start: Start, engine: ScriptedEngine) -> None:
    engine.turns = threading.Semaphore(0)
    engine.streams = [Stream(EVENTS), CHAT]
    edge = start(limits={"streams": 1})
    held = open_stream(edge)
    process = client(edge, "busy")
    assert process.stdout is not None
    raised, status = (json.loads(process.stdout.readline()) for _ in range(2))
    message = "This key has 1 requests at the same time."
    assert raised == {"raised": "RateLimitError", "status": 429, "code": "rate_limit_exceeded", "message": message}
    assert status == {"status": 429}
    # Now the client waits as long as Retry-After says.
    release(engine, len(EVENTS))
    assert events(held) == len(EVENTS)
    again, text = said(process)
    assert again == {"status": 200}
    assert text["text"] == MESSAGE["content"]
    print(f"\nopenai-python repeated a 429 by itself: an answer after {text['seconds']:.1f} s")


def test_litellm(start: Start, engine: ScriptedEngine) -> None:
    edge = start()
    engine.streams = [CHAT, CALLS, Stream(EVENTS)]
    chat, tools, stream, refused = said(client(edge, "litellm"))
    assert chat == {"text": MESSAGE["content"]}
    assert tools == {"name": "get_weather", "arguments": CALL["function"]["arguments"]}  # type: ignore[index]
    assert "".join(text or "" for text in stream["texts"]) == "".join(event.content for event in EVENTS)
    assert refused["raised"] == "AuthenticationError"
    assert NO_KEY in refused["message"]


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_curl(start: Start, engine: ScriptedEngine, version: str) -> None:
    edge = start()
    engine.streams = [CHAT]
    url = f"https://127.0.0.1:{edge.port}/v1/chat/completions"
    trust = ["curl", "-sS", "--fail", version, "--cacert", str(edge.folder / "ca.crt")]
    words = [*trust, "-H", f"Authorization: Bearer {KEY}", "-d", '{"model": "model", "messages": []}', url]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == CHAT.body
    assert "certificate" in subprocess.run([*trust[:-2], url], capture_output=True, text=True, check=False).stderr
