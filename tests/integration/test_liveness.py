"""The liveness program: which probes are a hang, and how it reads the responses of a real HTTP server."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_http import QuietServer
from vllm_spark.node import deployment_state, engine_api, liveness, starts
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.state_writer import StateOf

READY = {"ready": True, "misses": 0}
# As vLLM 0.30.0 prints it.
GENERATED = 'vllm:generation_tokens_total{engine="0",model_name="m"} %.1f'
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
        ({}, {"progress": GENERATED % 0}, {"ready": False, "misses": 0}, ""),  # no token yet
        ({}, {"progress": GENERATED % 7}, {**MISSED, "progress": GENERATED % 7}, ""),  # others had their tokens before
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
        if self.mode == "role":
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked.pop("model") == "m"
            served = [proof for proof in engine_api.PROOFS.values() if (proof.path, proof.body) == (self.path, asked)]
            self.reply(200, json.dumps({served[0].mark.strip('"'): 1}))
        elif self.mode == "good":
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
        elif self.mode == "drip":
            self.send_response(200)
            self.end_headers()
            self.drip()
        elif self.mode == "dripping header":
            self.wfile.write(b"HTTP/1.0 200 OK\r\nx: ")
            self.drip()
        elif self.mode == "empty":
            self.reply(200, "{}")
        else:
            self.close_connection = True

    def drip(self) -> None:
        with suppress(OSError):
            while True:
                self.wfile.write(b"a")
                time.sleep(0.05)

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


@pytest.mark.parametrize("role", engine_api.PROOFS)
def test_a_server_is_asked_by_its_role(role: str, server: dict[str, Any]) -> None:
    Engine.mode = "role"
    probe = liveness.probe_token("no-such-deployment", {**server, "role": role}, 1.0)  # type: ignore[typeddict-item]
    assert (probe["answered"], probe["role"]) == (True, role)


def test_a_reply_without_an_end_is_cut(server: dict[str, Any]) -> None:
    Engine.mode = "endless"
    status, text = engine_api.send(server, "POST", "/v1/completions", "{}")
    assert (status, len(text)) == (200, engine_api.MAX_REPLY_BYTES)


@pytest.mark.parametrize("mode", ["drip", "dripping header"])
def test_an_answer_that_drips_has_a_deadline(
    mode: str, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte begins the timeout of a socket again."""
    Engine.mode = mode
    monkeypatch.setattr(engine_api, "TIMEOUT_S", 0.5)
    began = time.monotonic()
    status, text = engine_api.send(server, "POST", "/v1/completions", "{}")  # type: ignore[arg-type]
    assert 0.5 <= time.monotonic() - began < 5
    assert not engine_api.is_token(status, text)


def test_a_refused_request_is_not_a_miss(server: dict[str, Any]) -> None:
    Engine.mode = "key"
    probe = liveness.probe_token("no-such-deployment", server, 1.0)
    assert (probe["answered"], probe["refused"], probe["detail"]) == (False, True, "status 401")


def test_a_missing_server_does_not_answer() -> None:
    nowhere: engine_api.EngineAddress = {"address": "127.0.0.1", "port": 1, "model": "m", "deadline_s": 1}
    probe = liveness.probe_token("no-such-deployment", nowhere, 1.0)
    assert not probe["answered"]
    assert not probe["progress"]
    assert "refused" in probe["detail"]


def test_the_deadline_is_that_of_the_start() -> None:
    now = deployment_state.State(
        state="loading", why="", since=4995.0, last_end="", peers=["other"], start="a", failed=0, written=True
    )
    moment = starts.Moment("boot", 5000.0, 100.0)
    record = starts.begun(starts.Record(), "a", starts.Moment("boot", 1.0, 80.0))
    assert liveness.running_s(record, now, moment) == 20
    # A start of release 0.1.0 has no record.
    assert liveness.running_s(starts.Record(), now, moment) == 5
    assert liveness.running_s(starts.Record(), {**now, "state": "serving"}, moment) == 0


def test_what_was_seen_of_another_start_is_forgotten() -> None:
    stored = {**READY, "since": 1.0, "good": True, "start": "a"}
    assert liveness.remembered(stored, "a") == {**READY, "since": 1.0, "good": True}
    assert liveness.remembered(stored, "b") == {}
    # What the former release has stored of a start that goes on.
    assert liveness.remembered({**READY, "invocation": "i"}, "") == READY
    assert liveness.remembered({**READY, "invocation": "i"}, "b") == {}


@pytest.fixture
def spark(server: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateOf:
    """The deployment of a Spark whose unit runs. A test changes its engine by `Engine.mode`."""
    places = Places(*(str(tmp_path / name) for name in ("run", "states", "wants", "etc", "starts")))
    monkeypatch.setattr(liveness, "PLACES", places)
    monkeypatch.setattr(liveness, "MOVE_S", 0.0)
    monkeypatch.setattr(liveness, "is_active", lambda _: True)
    monkeypatch.setattr(sys, "argv", ["liveness", "demo"])
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n')
    (tmp_path / "systemctl").chmod(0o755)
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/removed\n')
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "etc" / "demo").mkdir(parents=True)
    (tmp_path / "etc" / "demo" / "liveness.json").write_text(json.dumps({**server, "deadline_s": 1e9}))
    return StateOf("demo", places)


def after_a_probe(spark: StateOf, mode: str) -> tuple[str, str]:
    """Return what the deployment does after one run of the program, and why."""
    Engine.mode = mode
    assert liveness.main() == 0
    now = deployment_state.present(spark.name, spark.places)
    return now["state"], now["why"]


def test_the_first_token_is_when_it_serves_and_a_hang_is_named(spark: StateOf, tmp_path: Path) -> None:
    spark.write("loading")
    assert after_a_probe(spark, "mute") == ("loading", "")
    assert after_a_probe(spark, "good") == ("serving", "")
    assert after_a_probe(spark, "dead") == ("serving", "")
    assert not (tmp_path / "removed").exists()
    assert after_a_probe(spark, "dead") == ("failed", "it hung: 2 requests for a token had no answer (status 500)")
    assert (tmp_path / "removed").read_text() == "rm --force vllm-demo\n"
    # Until the unit has started again there is no engine to judge.
    assert after_a_probe(spark, "dead")[0] == "failed"
    assert len((tmp_path / "removed").read_text().splitlines()) == 1


def test_a_container_that_cannot_be_removed_is_tried_again(spark: StateOf, tmp_path: Path) -> None:
    spark.write("loading")
    assert after_a_probe(spark, "good") == ("serving", "")
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n')
    (tmp_path / "systemctl").chmod(0o755)
    (tmp_path / "docker").write_text(f"#!/bin/sh\necho tried >> {tmp_path}/tried\nexit 1\n")
    assert after_a_probe(spark, "dead") == ("serving", "")
    for count in (1, 2):
        assert liveness.main() == 1
        assert deployment_state.present(spark.name, spark.places)["state"] == "serving"
        assert len((tmp_path / "tried").read_text().splitlines()) == count


@pytest.mark.parametrize("state", ["draining", "stopped", "gave up"])
def test_a_token_changes_no_state_that_another_program_has_decided(spark: StateOf, state: str) -> None:
    spark.write(state, "by ann")
    assert after_a_probe(spark, "good") == (state, "by ann")


def test_a_rank_that_waits_for_its_peer_is_not_asked(spark: StateOf, tmp_path: Path) -> None:
    spark.write("wanted", "it waits for spark2", peers=["spark2"])
    assert after_a_probe(spark, "good") == ("wanted", "it waits for spark2")
    assert not (tmp_path / "run" / "demo" / "liveness.json").exists()


def begin(spark: StateOf, start: str) -> None:
    """Begin a start, as the unit of a server of one Spark does."""
    now = starts.moment(spark.places)
    starts.change(spark.name, spark.places, lambda old: starts.begun(old, start, now))
    spark.write("loading")


def test_an_engine_that_loads_again_is_no_engine_that_hangs(spark: StateOf, tmp_path: Path) -> None:
    begin(spark, "a")
    assert after_a_probe(spark, "good")[0] == "serving"
    # Its peer was stopped in order, and both start again. No API answers meanwhile.
    begin(spark, "b")
    nowhere = {"address": "127.0.0.1", "port": 1, "model": "m", "deadline_s": 900}
    (tmp_path / "etc" / "demo" / "liveness.json").write_text(json.dumps(nowhere))
    for _ in range(4):
        assert after_a_probe(spark, "mute") == ("loading", "")
    assert not (tmp_path / "removed").exists()


def test_nothing_that_concerns_another_start_is_done(
    spark: StateOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(spark, "a")
    assert after_a_probe(spark, "good")[0] == "serving"
    assert after_a_probe(spark, "dead")[0] == "serving"
    probe_token = liveness.probe_token

    def meanwhile(*arguments: Any) -> liveness.TokenProbe:
        begin(spark, "b")
        return probe_token(*arguments)

    monkeypatch.setattr(liveness, "probe_token", meanwhile)
    assert after_a_probe(spark, "dead") == ("loading", "")
    assert not (tmp_path / "removed").exists()


def test_five_good_minutes_forget_the_failed_starts(
    spark: StateOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(spark, "a")
    starts.change("demo", spark.places, lambda old: starts.failed(old, "status 1"))
    begin(spark, "b")
    after_a_probe(spark, "good")
    assert starts.read("demo", spark.places).count.failures == ("a",)
    monkeypatch.setattr(liveness, "GOOD_S", 0.0)
    after_a_probe(spark, "good")
    assert starts.read("demo", spark.places).count == starts.Count(era=1)
    assert "reset-failed vllm@demo.service" in (tmp_path / "called").read_text()


def test_a_start_of_the_former_release_goes_on_under_its_own_rules(spark: StateOf, tmp_path: Path) -> None:
    spark.write("serving")
    memory = Path(spark.places.run, "demo", "liveness.json")
    memory.write_text(json.dumps({**READY, "since": 1.0, "good": True, "invocation": "i"}))
    for _ in range(2):
        assert after_a_probe(spark, "good")[0] == "serving"
    assert not Path(spark.places.starts).exists()
    after_a_probe(spark, "dead")
    assert after_a_probe(spark, "dead")[1].startswith("it hung: 2 requests")
