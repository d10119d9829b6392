"""The liveness program: which probes are a hang, and how it reads the responses of a real HTTP server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from fakes.fake_http import QuietServer
from vllm_spark.node import engine_api, liveness

READY = {"ready": True, "misses": 0}
MISSED = {"ready": True, "misses": 1, "progress": "7", "works": False}
MISS = {
    "answered": False,
    "progress": "7",
    "moves": False,
    "refused": False,
    "running_s": 50.0,
    "deadline_s": 300,
    "detail": "timed out",
}


@pytest.mark.parametrize(
    ("past", "now", "memory", "why"),
    [
        ({}, {"answered": True}, READY, ""),
        ({}, {}, {"ready": False, "misses": 0}, ""),  # still starting
        ({}, {"running_s": 301.0}, {"ready": False, "misses": 0}, "no token within 300 s of its start (timed out)"),
        (READY, {}, MISSED, ""),  # one miss is not a hang
        (MISSED, {}, {**MISSED, "misses": 2}, "2 requests for a token had no answer"),
        (MISSED, {"answered": True}, READY, ""),
        (MISSED, {"progress": "8"}, {**MISSED, "progress": "8", "works": True}, ""),  # it works on a longer request
        (MISSED, {"moves": True}, {**MISSED, "works": True}, ""),
        (
            MISSED,
            {"progress": ""},
            {**MISSED, "progress": "", "works": True},
            "",
        ),  # the API itself ended; systemd notices
        ({**MISSED, "progress": ""}, {"progress": ""}, {**MISSED, "misses": 2, "progress": ""}, "2 requests"),
        (MISSED, {"refused": True}, READY, ""),  # a wrong key is not a hang
        ({}, {"refused": True, "running_s": 301.0}, {"ready": False, "misses": 0}, ""),
        (READY, {"running_s": 1e6}, MISSED, ""),  # the deadline applies only to a start
    ],
)
def test_a_probe_after_another(past: dict[str, Any], now: dict[str, Any], memory: dict[str, Any], why: str) -> None:
    stored, reason = liveness.judge(past, {**MISS, **now})
    assert stored == memory
    assert reason.startswith(why)
    assert bool(reason) == bool(why)


@pytest.mark.parametrize(
    ("past", "memory", "now", "stored", "becomes_good"),
    [
        ({}, {"ready": False, "misses": 0}, 0.0, {"ready": False, "misses": 0}, False),
        ({}, READY, 100.0, {**READY, "since": 100.0, "good": False}, False),
        ({**READY, "since": 100.0}, READY, 399.0, {**READY, "since": 100.0, "good": False}, False),
        ({**READY, "since": 100.0}, READY, 400.0, {**READY, "since": 100.0, "good": True}, True),
        ({**READY, "since": 100.0, "good": True}, READY, 900.0, {**READY, "since": 100.0, "good": True}, False),
        ({**READY, "since": 100.0}, MISSED, 400.0, {**MISSED, "since": 100.0, "good": False}, False),
    ],
)
def test_a_start_that_served_for_five_minutes_is_a_good_one(
    past: Any, memory: Any, now: float, stored: dict[str, Any], becomes_good: bool
) -> None:
    assert liveness.served(past, memory, now) == (stored, becomes_good)


class Engine(BaseHTTPRequestHandler):
    """A fake API of an engine; a test sets `mode`."""

    mode = "good"

    def do_GET(self) -> None:
        # As vLLM 0.32 prints them; only the first two move while the engine works.
        self.reply(
            200,
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
            'vllm:generation_tokens_total{engine="0",model_name="m"} 7.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n',
        )

    def do_POST(self) -> None:
        if self.mode == "good":
            self.reply(200, '{"choices": [{"text": "a"}]}')
        elif self.mode == "key":
            self.reply(401, "Unauthorized")
        elif self.mode == "dead":
            self.reply(500, "EngineDeadError")
        elif self.mode == "endless":
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"a" * (1 << 16))
        elif self.mode == "empty":
            self.reply(200, "{}")
        else:
            self.close_connection = True

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[dict[str, Any]]:
    http_server = QuietServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    yield {"address": "127.0.0.1", "port": http_server.server_port, "model": "m", "deadline_s": 300}
    http_server.shutdown()


COUNTERS = "\n".join(
    [
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25',
        'vllm:generation_tokens_total{engine="0",model_name="m"} 7.0',
    ]
)


@pytest.mark.parametrize(
    ("mode", "answered", "progress"),
    [("good", True, ""), ("dead", False, COUNTERS), ("empty", False, COUNTERS), ("mute", False, COUNTERS)],
)
def test_the_responses_of_a_server(
    mode: str, answered: bool, progress: str, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine.mode = mode
    monkeypatch.setattr(liveness, "MOVE_S", 0.0)
    probe = liveness.probe_token("no-such-deployment", server, 1.0)
    assert (probe["answered"], probe["progress"]) == (answered, progress)
    assert probe["detail"]


def test_a_reply_without_an_end_is_cut(server: dict[str, Any]) -> None:
    Engine.mode = "endless"
    status, text = engine_api.send(server, "POST", "/v1/completions", "{}")
    assert (status, len(text)) == (200, engine_api.MAX_REPLY_BYTES)


def test_a_refused_request_is_not_a_miss(server: dict[str, Any]) -> None:
    Engine.mode = "key"
    probe = liveness.probe_token("no-such-deployment", server, 1.0)
    assert (probe["answered"], probe["refused"], probe["detail"]) == (False, True, "status 401")


def test_a_missing_server_does_not_answer() -> None:
    nowhere: engine_api.Server = {"address": "127.0.0.1", "port": 1, "model": "m", "deadline_s": 1}
    probe = liveness.probe_token("no-such-deployment", nowhere, 1.0)
    assert not probe["answered"]
    assert not probe["progress"]
    assert "refused" in probe["detail"]


def test_the_wait_for_a_peer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_MONOTONIC: 100.0}[clock])
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    state = {"ActiveEnterTimestampMonotonic": "20000000"}
    assert liveness.running_s(state, {}) == 80
    assert liveness.running_s(state, {"state": "starting", "since": 4995.0}) == 5
    assert liveness.running_s(state, {"state": "serving", "since": 4995.0}) == 80
