"""Requests of the probe module to a real HTTP server on loopback, with one behaviour per path."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_requests

import loopback
from fakes.fake_http import QuietServer, own_certificate
from project_files import load_module
from waiting import LIMIT_S

probe = load_module("vllm_probe")


HEAD = b"HTTP/1.1 200 OK\r\n"
EVENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'

# Bytes on the wire: sent once, then repeated while the connection is open.
WIRE = {
    "/status-for-ever": (b"HTTP/1.1 200 ", b"x"),
    "/headers-for-ever": (HEAD + b"X: ", b"x"),
    "/continue-for-ever": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "/no-http": (b"", b"\x00\xff\r\n"),
    "/chunk-size-for-ever": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "/no-chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"x"),
    "/negative-length": (HEAD + b"Content-Length: -1\r\n\r\n", b"x"),
    "/events-for-ever": (HEAD + b"\r\n", EVENT),
    "/event-for-ever": (HEAD + b"\r\ndata: ", b"x"),
    "/huge-stream": (HEAD + b"\r\n", EVENT * 1000),
    "/open-after-done": (HEAD + b"\r\n" + EVENT + b"data: [DO", b"NE]\n\n"),
}


class Server(BaseHTTPRequestHandler):
    """A server that answers by path and records the requests."""

    requests: list[tuple[str, str | None]]
    ended: threading.Event

    def do_GET(self) -> None:
        type(self).requests.append((self.path, self.headers.get("Authorization")))
        if self.path in WIRE:
            self.write_on(WIRE[self.path])
            return
        if self.path == "/slow":
            self.ended.wait(LIMIT_S)
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while not self.ended.wait(0.2):
                try:
                    self.wfile.write(b"data: x\n\n")
                    self.wfile.flush()
                except OSError:
                    return
            return
        bodies = {
            "/bytes": b"\xff\xfe\x00",
            "/huge": b"x" * (4 << 20),
            "/echo": json.dumps(dict(self.headers)).encode(),
        }
        body = bodies.get(self.path, b'{"ok": true}')
        self.send_response(500 if self.path == "/error" else 200)
        self.send_header("Content-Length", str(len(body) * (2 if self.path == "/truncated" else 1)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            return

    def write_on(self, parts: tuple[bytes, bytes]) -> None:
        """Send the first part, then repeat the second until the client closes or the test ends."""
        first, again = parts
        try:
            self.wfile.write(first)
            while not self.ended.wait(0.05 if len(again) < 1000 else 0):
                self.wfile.write(again)
                self.wfile.flush()
        except OSError:
            return

    do_POST = do_GET  # noqa: N815  the base class names it

    def log_message(self, *args: Any) -> None:
        del args


@pytest.fixture
def port() -> Iterator[int]:
    Server.requests, Server.ended = [], threading.Event()
    server = QuietServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    Server.ended.set()
    server.shutdown()


def request(path: str, timeout_s: float = LIMIT_S) -> dict[str, Any]:
    return {"id": path, "method": "GET", "path": path, "timeout_s": timeout_s}


LATE = "within 1 s"


def deadline_s(error: object) -> float:
    """Return the deadline of a request: a short one if the expected error is that it has passed."""
    return 1 if error == LATE else LIMIT_S


# path -> (status or None, a part of the error)
REPLIES = {
    "/good": (200, ""),
    "/error": (500, ""),
    "/bytes": (200, ""),
    "/huge": (200, ""),
    "/truncated": (None, "IncompleteRead"),
    "/slow": (None, LATE),
    "/endless": (None, LATE),
}


@pytest.mark.parametrize("path", REPLIES)
def test_every_response_ends_by_its_deadline(path: str, port: int) -> None:
    started_at = time.monotonic()
    status, error = REPLIES[path]
    response = spark_requests.send(("127.0.0.1", port), request(path, timeout_s=deadline_s(error)), "")
    # Far above the deadline of 1 s and below the time of the endless server, also on a loaded machine.
    assert time.monotonic() - started_at < LIMIT_S / 2
    assert response.get("status") == status
    assert error in response.get("error", "")
    assert len(json.dumps(response)) < 10_000


# path -> the result of reading a stream from it: an error, or True if the stream was done
STREAMS = {
    "/status-for-ever": LATE,
    "/headers-for-ever": LATE,
    "/continue-for-ever": LATE,
    "/no-http": "BadStatusLine",
    "/chunk-size-for-ever": LATE,
    "/no-chunk": "IncompleteRead",
    "/negative-length": LATE,
    "/events-for-ever": LATE,
    "/event-for-ever": LATE,
    "/huge-stream": False,
    "/open-after-done": True,
}


@pytest.mark.parametrize("path", STREAMS)
def test_every_stream_ends_by_its_deadline_or_its_limit(path: str, port: int) -> None:
    expected = STREAMS[path]
    stream = {"id": "s", "method": "POST", "path": path, "body": {"stream": True}, "timeout_s": deadline_s(expected)}
    response = spark_requests.send(("127.0.0.1", port), stream, "")
    if isinstance(expected, str):
        assert expected in response["error"], response
    else:
        assert response["done"] is expected
        assert len(json.dumps(response)) < 2 * spark_requests.MAX_RESPONSE_BYTES


# bytes of a stream -> (number of events, done, whether a piece is bad)
EVENTS = {
    "vLLM's": (EVENT * 2 + b"data: [DONE]\n\n", 2, True, False),
    "with CRLF and comments": (
        b": ping\r\n\r\ndata:{}\r\n\r\nevent: x\r\ndata: {}\r\n\r\ndata: [DONE]\r\n",
        2,
        True,
        False,
    ),
    "an event over two lines": (b'data: {"a":\ndata: 1}\n\ndata: [DONE]\n\n', 1, True, False),
    "cut in an event": (EVENT + b'data: {"choi', 1, False, True),
    "cut between events": (EVENT, 1, False, False),
    "after the end": (b"data: [DONE]\n\n" + EVENT, 0, True, False),
    "done as a text": (b'data: {"a": "data: [DONE]"}\n\n', 1, False, False),
    "empty": (b"", 0, False, False),
    "no events": (b"<html>", 0, False, False),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events_are_read(name: str) -> None:
    raw, events, done, bad = EVENTS[name]
    stream = spark_requests.parse_stream(raw)
    assert (len(stream["events"]), stream["done"], bool(stream["bad"])) == (events, done, bad)


# A JSON text that a later parser may refuse -> the document that is returned instead
TRAPS = {
    '{"a": NaN}': {"a": "NaN"},
    "[-Infinity, 1e999]": ["-Infinity", "1e999"],
    '"\\ud800"': "?",
    "[" * 65 + "]" * 65: None,
    "[" * 100_000: None,
    "9" * 5000: None,
    "[1, 2": None,
}


@pytest.mark.parametrize("text", TRAPS, ids=lambda text: text[:12])
def test_a_response_is_safe_for_later_parsers(text: str) -> None:
    read = spark_requests.parse(text)
    assert read == TRAPS[text]
    json.dumps(read, allow_nan=False).encode()


def test_lines_of_a_text_are_selected_by_their_prefix() -> None:
    raw = b"up 1\n" + b"count{a} 1\n" * 100
    read = spark_requests.parse_body(raw, "count")
    assert read["text"].splitlines() == ["count{a} 1"] * spark_requests.MAX_LINES


def test_nothing_listens() -> None:
    assert "ConnectionRefusedError" in spark_requests.send(("127.0.0.1", 1), request("/good"), "")["error"]


@pytest.mark.parametrize("path", ["/good", "/truncated", "/slow", "/endless"])
def test_a_router_with_tls_answers_by_the_deadline(
    path: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del port  # the server without TLS, whose end releases the silent answers
    context, certificate = own_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    status, error = REPLIES[path]
    server = QuietServer(("127.0.0.1", 0), Server)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with loopback.running(server):
        asked = {**request(path, deadline_s(error)), "base": f"https://127.0.0.1:{server.server_port}"}
        response = spark_requests.send(("127.0.0.1", 1), asked, "")
    assert response.get("status") == status
    assert error in response.get("error", "")


def test_the_rest_is_not_sent_if_the_first_fails(port: int) -> None:
    responses = spark_requests.send_all(("127.0.0.1", port), [request("/error"), request("/good")], "")
    assert list(responses) == ["/error"]
    assert list(spark_requests.send_all(("127.0.0.1", port), [request("/good"), request("/error")], "")) == [
        "/good",
        "/error",
    ]


def test_the_key_is_sent_and_not_returned(port: int, tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.write_text("# comment with VLLM_API_KEY=wrong\nHF_TOKEN=t\nVLLM_API_KEY=a=b\n")
    responses = spark_requests.send_all(
        ("127.0.0.1", port), [request("/good")], probe.variables(str(env))["VLLM_API_KEY"]
    )
    assert Server.requests == [("/good", "Bearer a=b")]
    assert "a=b" not in json.dumps(responses)
    assert probe.variables(str(tmp_path / "none")) == {}


def test_another_server_gets_the_key_that_its_request_names(port: int) -> None:
    elsewhere = {**request("/good"), "base": f"http://127.0.0.1:{port}", "key_env": "ROUTER_KEY"}
    env = {"VLLM_API_KEY": "engine", "ROUTER_KEY": "router", "EMPTY": ""}
    spark_requests.send_all(("127.0.0.1", 1), [elsewhere, {**elsewhere, "key_env": ""}], "engine", env)
    assert Server.requests == [("/good", "Bearer router"), ("/good", None)]
    for name in ("NONE", "EMPTY"):
        responses = spark_requests.send_all(
            ("127.0.0.1", 1), [{**elsewhere, "key_env": name}, elsewhere], "engine", env
        )
        assert responses == {"/good": {"error": f"the env file has no {name} to send", "seconds": 0.0}}
    assert len(Server.requests) == 2


def test_a_key_that_the_server_repeats_is_not_returned(port: int) -> None:
    responses = spark_requests.send_all(("127.0.0.1", port), [request("/echo")], "a-long-enough-key")
    assert responses["/echo"]["json"]["Authorization"] == "Bearer ***"
