"""The probe module against a real HTTP server on loopback that behaves in one way each."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import load_module

probe = load_module("vllm_probe")


class Server(BaseHTTPRequestHandler):
    """Answers by path; keeps what it was asked."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers.get("Authorization")))
        if self.path == "/slow":
            time.sleep(3)
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            end = time.monotonic() + 6
            while time.monotonic() < end:
                try:
                    self.wfile.write(b"data: x\n\n")
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.2)
            return
        body = {"/bytes": b"\xff\xfe\x00", "/huge": b"x" * (4 << 20)}.get(self.path, b'{"ok": true}')
        self.send_response(500 if self.path == "/error" else 200)
        self.send_header("Content-Length", str(len(body) * (2 if self.path == "/truncated" else 1)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            return

    do_POST = do_GET  # noqa: N815  the base class names it

    def log_message(self, *words: Any) -> None:
        del words


@pytest.fixture
def port() -> Iterator[int]:
    Server.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def request(path: str, timeout_s: float = 2) -> dict[str, Any]:
    return {"id": path, "method": "GET", "path": path, "timeout_s": timeout_s}


# path -> (status or None, a part of the error)
REPLIES = {
    "/good": (200, ""),
    "/error": (500, ""),
    "/bytes": (200, ""),
    "/huge": (200, ""),
    "/truncated": (None, "IncompleteRead"),
    "/slow": (None, "within 1 s"),
    "/endless": (None, "within 1 s"),
}


@pytest.mark.parametrize("path", REPLIES)
def test_every_reply_ends_by_its_deadline(path: str, port: int) -> None:
    begun = time.monotonic()
    reply = probe.ask(("127.0.0.1", port), request(path, timeout_s=1), "")
    # Far above the deadline of 1 s and below what the endless server takes, so that a loaded machine proves it too.
    assert time.monotonic() - begun < 4.5
    status, error = REPLIES[path]
    assert reply.get("status") == status
    assert error in reply.get("error", "")
    assert len(json.dumps(reply)) < 10_000


def test_nobody_there() -> None:
    assert "ConnectionRefusedError" in probe.ask(("127.0.0.1", 1), request("/good"), "")["error"]


def test_the_rest_is_left_out_if_the_first_fails(port: int) -> None:
    replies = probe.ask_all(("127.0.0.1", port), [request("/error"), request("/good")], "")
    assert list(replies) == ["/error"]
    assert list(probe.ask_all(("127.0.0.1", port), [request("/good"), request("/error")], "")) == ["/good", "/error"]


def test_the_key_is_sent_and_not_returned(port: int, tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.write_text("# comment with VLLM_API_KEY=wrong\nHF_TOKEN=t\nVLLM_API_KEY=a=b\n")
    replies = probe.ask_all(("127.0.0.1", port), [request("/good")], probe.api_key(str(env)))
    assert Server.asked == [("/good", "Bearer a=b")]
    assert "a=b" not in json.dumps(replies)
    assert probe.api_key(str(tmp_path / "none")) == ""
