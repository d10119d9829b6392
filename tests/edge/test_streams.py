"""Streams through a real HAProxy: event by event, many at once, and none cut by a change of keys or by a reload."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import pytest

from conftest import EVENTS, Start
from fakes.running_edge import HASH, KEY, RunningEdge, haproxy
from fakes.scripted_engine import ScriptedEngine, Stream
from waiting import until

BODY = json.dumps({"model": "model", "messages": [], "stream": True}).encode()
STREAMS = 10


def open_stream(edge: RunningEdge, key: str = KEY, body: bytes = BODY) -> HTTPResponse:
    """Return a response whose header has arrived."""
    connection = edge.connect()
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})
    return connection.getresponse()


def arrivals(response: HTTPResponse) -> list[float]:
    """Return the moments at which the events of a stream arrive. Fails if it does not end as a stream should."""
    moments: list[float] = []
    last = b""
    for line in response:
        if line.startswith(b"data: "):
            moments.append(time.monotonic())
            last = line
    assert last == b"data: [DONE]\n"
    return moments[:-1]


def events(response: HTTPResponse) -> int:
    """Return the number of events of a stream. Fails if it does not end as a stream should."""
    return len(arrivals(response))


def release(engine: ScriptedEngine, count: int = 1) -> None:
    """Let the engine send so many events, of all its streams."""
    assert engine.turns is not None
    engine.turns.release(count)


@pytest.fixture
def held(engine: ScriptedEngine) -> ScriptedEngine:
    """The engine, whose events wait for their release."""
    engine.turns = threading.Semaphore(0)
    return engine


@pytest.mark.parametrize("tls", ["own-ca", "off"])
def test_events_arrive_one_by_one(start: Start, tls: str, held: ScriptedEngine) -> None:
    response = open_stream(start(tls=tls))
    for event in EVENTS:
        # The next one is not sent before this one has arrived. An edge that holds one back ends the test by a timeout.
        release(held)
        while not (line := response.readline()).startswith(b"data: "):
            pass
        assert event.content in line.decode()
    assert events(response) == 0


def test_64_streams_at_once_and_not_one_more(start: Start, held: ScriptedEngine) -> None:
    edge = start(limits={"streams": 64})
    edge.show_key()
    with ThreadPoolExecutor(64) as pool:
        opened = list(pool.map(lambda _: open_stream(edge), range(64)))
        assert [response.status for response in opened] == [200] * 64
        refused = edge.ask("POST", "/v1/chat/completions", BODY)
        release(held, 64 * len(EVENTS))
        counts = list(pool.map(events, opened))
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert counts == [len(EVENTS)] * 64
    assert edge.ask("GET", "/v1/models").status == 200


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
@pytest.mark.parametrize("ending", ["silent", "stall"])
def test_a_client_that_goes_away_ends_its_request_at_the_engine(
    start: Start, engine: ScriptedEngine, ending: str, version: str
) -> None:
    """While the prompt is computed, and while the next token is."""
    edge = start()
    engine.streams = [Stream(EVENTS[:1], ending=ending)]
    trust = ["curl", "-sS", version, "--cacert", str(edge.folder / "ca.crt"), "-H", f"Authorization: Bearer {KEY}"]
    url = f"https://127.0.0.1:{edge.port}/v1/chat/completions"
    with subprocess.Popen([*trust, "-d", BODY.decode(), url], stdout=subprocess.DEVNULL) as client:
        until(lambda: engine.requests)
        assert engine.abandoned == 0
        client.terminate()
    until(lambda: engine.abandoned == 1)


def test_a_key_comes_and_goes_without_an_effect_on_streams(start: Start, held: ScriptedEngine) -> None:
    edge = start()
    stream = open_stream(edge)
    assert edge.ask("GET", "/v1/models", key="sk-new").status == 401
    edge.admin(f"del map {edge.files.keys} {HASH}")
    assert edge.ask("GET", "/v1/models").status == 401
    edge.admin(f"add map {edge.files.keys} {HASH} ada")
    assert edge.ask("GET", "/v1/models").status == 200
    release(held, len(EVENTS))
    assert events(stream) == len(EVENTS)


def reloaded_under(edge: RunningEdge) -> set[int]:
    """Reload while a client asks all the time, the first stage and the engine. Returns the statuses that it got."""
    before, statuses = edge.worker(), set[int]()

    def ask() -> None:
        statuses.update(edge.ask("GET", path).status for path in ("/health", "/v1/models"))

    def reloaded() -> bool:
        ask()
        return edge.has_reloaded(before)

    edge.reload()
    until(reloaded)
    # The old workers stop to accept a while after the new ones have begun.
    for _ in range(50):
        ask()
    return statuses


def test_a_reload_cuts_no_stream_and_refuses_no_request(start: Start, held: ScriptedEngine) -> None:
    edge = start(limits={"requests_per_minute": 100_000})
    streams = [open_stream(edge) for _ in range(STREAMS)]
    assert reloaded_under(edge) == {200}
    release(held, STREAMS * len(EVENTS))
    assert [whole(stream) for stream in streams] == [True] * STREAMS
    print(f"\n{STREAMS} streams under way, reload of the edge: 0 failed")


def test_a_reload_after_an_upgrade_runs_the_new_program_and_cuts_no_stream(
    start: Start, held: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, upgrade = tmp_path / "haproxy", tmp_path / "haproxy.new"
    for copy in (program, upgrade):
        shutil.copy(haproxy(), copy)
    monkeypatch.setenv("HAPROXY", str(program))
    edge = start(limits={"requests_per_minute": 100_000})
    streams = [open_stream(edge) for _ in range(STREAMS)]
    upgrade.replace(program)
    assert reloaded_under(edge) == {200}
    assert all(Path(f"/proc/{worker}/exe").samefile(program) for worker in edge.worker().split())
    release(held, STREAMS * len(EVENTS))
    assert [whole(stream) for stream in streams] == [True] * STREAMS
    print(f"\n{STREAMS} streams under way, another HAProxy in its place and a reload: 0 failed")


def test_a_restart_ends_streams_and_the_next_request_is_answered(start: Start, held: ScriptedEngine) -> None:
    """What `systemctl restart` does, and programs that restart services after an upgrade of libraries."""
    edge = start()
    streams = [open_stream(edge) for _ in range(STREAMS)]
    edge.restart()
    release(held, STREAMS * len(EVENTS))
    failed = [whole(stream) for stream in streams].count(False)
    print(f"\n{STREAMS} streams under way, restart of the edge: {failed} failed")
    assert failed == STREAMS
    assert edge.ask("GET", "/health").status == 200


def whole(stream: HTTPResponse) -> bool:
    """Return whether a stream ends as it should, with all events."""
    try:
        return events(stream) == len(EVENTS)
    except (OSError, HTTPException, AssertionError):
        return False
