"""The liveness probe: what is a hang and what is not, and what a real HTTP server's replies count as."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from vllm_spark.node import liveness

READY = {"ready": True, "misses": 0}
MISSED = {"ready": True, "misses": 1, "progress": "7"}
MISS = {"answered": False, "progress": "7", "running_s": 50.0, "deadline_s": 300, "said": "timed out"}


@pytest.mark.parametrize(
    ("past", "now", "memory", "why"),
    [
        ({}, {"answered": True}, READY, ""),
        ({}, {}, {"ready": False, "misses": 0}, ""),  # still starting
        ({}, {"running_s": 301.0}, {"ready": False, "misses": 0}, "no token within 300 s of its start (timed out)"),
        (READY, {}, MISSED, ""),  # one miss is none
        (MISSED, {}, {**MISSED, "misses": 2}, "2 requests for a token had no answer"),
        (MISSED, {"answered": True}, READY, ""),
        (MISSED, {"progress": "8"}, {**MISSED, "progress": "8"}, ""),  # it works at something longer
        (MISSED, {"progress": ""}, {**MISSED, "progress": ""}, ""),  # the API itself is gone; systemd will know
        ({**MISSED, "progress": ""}, {"progress": ""}, {"ready": True, "misses": 2, "progress": ""}, "2 requests"),
        (READY, {"running_s": 1e6}, MISSED, ""),  # the deadline is for a start
    ],
)
def test_what_a_look_means(past: dict[str, Any], now: dict[str, Any], memory: dict[str, Any], why: str) -> None:
    found, said = liveness.judge(past, {**MISS, **now})
    assert found == memory
    assert said.startswith(why)
    assert bool(said) == bool(why)


class Engine(BaseHTTPRequestHandler):
    """Stands in for an engine's API; `mode` is what a test sets."""

    mode = "good"

    def do_GET(self) -> None:
        # As vLLM 0.32 prints them; only the first two tell of work.
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
        elif self.mode == "dead":
            self.reply(500, "EngineDeadError")
        elif self.mode == "empty":
            self.reply(200, "{}")
        else:
            self.close_connection = True

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: Any) -> None:
        del words


@pytest.fixture
def wanted() -> Iterator[dict[str, Any]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"address": "127.0.0.1", "port": server.server_port, "model": "m", "deadline_s": 300}
    server.shutdown()


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
def test_what_a_server_says(mode: str, answered: bool, progress: str, wanted: dict[str, Any]) -> None:
    Engine.mode = mode
    seen = liveness.look("no-such-deployment", wanted, 1.0)
    assert (seen["answered"], seen["progress"]) == (answered, progress)
    assert seen["said"]


def test_no_server_is_no_answer() -> None:
    seen = liveness.look("no-such-deployment", {"address": "127.0.0.1", "port": 1, "model": "m", "deadline_s": 1}, 1.0)
    assert not seen["answered"]
    assert not seen["progress"]
    assert "refused" in seen["said"]


def test_waiting_for_a_peer_is_no_start() -> None:
    state = {"ActiveEnterTimestampMonotonic": "0"}
    waited = liveness.running_s(state, {})
    assert waited > 60  # since boot
    assert liveness.running_s(state, {"state": "starting", "since": time.time() - 5}) < 6
