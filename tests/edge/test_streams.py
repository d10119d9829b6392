"""Streams through a real HAProxy: event by event, many at once, and none cut by a change of keys or by a reload."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from itertools import pairwise

import pytest

from conftest import EVENTS, Start
from fakes.running_edge import HASH, KEY, RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream

BODY = json.dumps({"model": "model", "messages": [], "stream": True}).encode()
NEW_HASH = "5" * 64


def open_stream(edge: RunningEdge, key: str = KEY, body: bytes = BODY) -> HTTPResponse:
    """Return a response whose header has arrived."""
    connection = edge.connect(timeout=30)
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


@pytest.mark.parametrize("tls", ["own-ca", "off"])
def test_events_arrive_one_by_one(start: Start, tls: str) -> None:
    moments = arrivals(open_stream(start(tls=tls)))
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(moments) == len(EVENTS)
    # Events that HAProxy had held back would come in pairs: no gap, then a double one.
    assert min(gaps) > 0.025, gaps
    assert max(gaps) < 0.095, gaps


def test_64_streams_at_once_and_not_one_more(start: Start, engine: ScriptedEngine) -> None:
    engine.streams = [Stream([Event(0.5 + 0.1 * number, content="word ") for number in range(10)])]
    edge = start(limits={"streams": 64})
    with ThreadPoolExecutor(64) as pool:
        opened = list(pool.map(lambda _: open_stream(edge), range(64)))
        assert [response.status for response in opened] == [200] * 64
        refused = edge.ask("POST", "/v1/chat/completions", BODY)
        counts = [len(moments) for moments in pool.map(arrivals, opened)]
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert counts == [10] * 64
    assert edge.ask("GET", "/v1/models").status == 200


def test_a_key_comes_and_goes_without_an_effect_on_streams(start: Start) -> None:
    edge = start()
    stream = open_stream(edge)
    assert edge.ask("GET", "/v1/models", key="sk-new").status == 401
    edge.admin(f"del map {edge.files.keys} {HASH}")
    assert edge.ask("GET", "/v1/models").status == 401
    edge.admin(f"add map {edge.files.keys} {HASH} ada")
    assert edge.ask("GET", "/v1/models").status == 200
    assert len(arrivals(stream)) == len(EVENTS)


def test_a_reload_cuts_no_stream_and_refuses_no_request(start: Start, engine: ScriptedEngine) -> None:
    engine.streams = [Stream([Event(0.2 * number, content="word ") for number in range(1, 11)])]
    edge = start()
    streams = [open_stream(edge) for _ in range(4)]
    before = edge.admin("show info")
    edge.reload()
    deadline = time.monotonic() + 1.5
    statuses = set()
    while time.monotonic() < deadline:
        statuses.add(edge.ask("GET", "/health").status)
    assert statuses == {200}
    assert [len(arrivals(stream)) for stream in streams] == [10] * 4
    pid = next(line for line in before.splitlines() if line.startswith("Pid:"))
    assert pid not in edge.admin("show info").splitlines()
