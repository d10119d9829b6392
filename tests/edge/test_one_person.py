"""A person costs only her share: another person's first token beside what one key can send.

`pytest -s` shows the times. A time is compared with that of the same run, beside bodies of the same size that are one
string.
"""

from __future__ import annotations

import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from test_before_the_key import LONGEST_S, dial
from test_streams import open_stream

from conftest import Start
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from vllm_spark.core.units import MIB
from waiting import until

BOB = "sk-of-bob"
BODY_BYTES = 16 * MIB
QUESTIONS = 12
CHAT = "/v1/chat/completions"
HOST = "Host: 127.0.0.1\r\n"
# Bodies of one person: as many bytes in one string, and what takes a parser the longest.
BODIES = {
    "one string": b'{"messages": "%s", "model": "model"}' % (b"x" * (BODY_BYTES - 40)),
    "strings": b'{"messages": [%s""], "model": "model"}' % (b'"",' * ((BODY_BYTES - 40) // 3)),
    "brackets": b'{"messages": [%s0], "model": "model"}' % (b"{}," * ((BODY_BYTES - 40) // 3)),
    "spaces": b'{"messages": %s0, "model": "model"}' % (b" " * (BODY_BYTES - 40)),
}
# How many times longer another person may wait beside any of them than beside one string.
FACTOR, LEAST_S = 10, 0.1


@pytest.fixture
def shared(start: Start, engine: ScriptedEngine) -> Callable[..., RunningEdge]:
    """A function that starts an edge with the keys of ada and bob."""
    engine.streams = [Stream([Event(0.0, content="word")])]

    def _start(**settings: object) -> RunningEdge:
        edge = start(tls="off", **settings)
        edge.admin(f"add map {edge.files.keys} {hashlib.sha256(BOB.encode()).hexdigest()} bob")
        return edge

    return _start


def first_token_s(edge: RunningEdge) -> float:
    """Return how long bob waits for the first event of a stream."""
    began = time.monotonic()
    with open_stream(edge, BOB) as response:
        assert response.readline().startswith(b"data: ")
        return time.monotonic() - began


@contextmanager
def asking(edge: RunningEdge, body: bytes, number: int) -> Iterator[None]:
    """Let ada send so many bodies at the same time, again and again."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            # One of them may be cut when the edge ends.
            with suppress(OSError):
                edge.ask("POST", CHAT, body)

    with ThreadPoolExecutor(number) as pool:
        running = [pool.submit(ask) for _ in range(number)]
        try:
            until(lambda: f"key=ada use={number}" in edge.admin("show table edge_users"))
            yield
        finally:
            ended.set()
    assert all(one.exception() is None for one in running)


@pytest.mark.parametrize("number", [1, 8, 16])
def test_bodies_of_one_person_let_another_one_wait_no_longer_than_their_bytes_do(
    shared: Callable[..., RunningEdge], number: int
) -> None:
    edge = shared(limits={"requests_per_minute": 100_000})
    worker, medians = edge.worker(), {}
    alone = statistics.median(first_token_s(edge) for _ in range(QUESTIONS))
    print(f"\n| {number} | nothing | {1000 * alone:.0f} |")
    for kind, body in BODIES.items():
        with asking(edge, body, number):
            times = [first_token_s(edge) for _ in range(QUESTIONS)]
        medians[kind] = statistics.median(times)
        print(f"| {number} | {kind} | {1000 * medians[kind]:.0f} | {1000 * max(times):.0f} |")
        assert max(times) < LONGEST_S
    assert edge.worker() == worker
    assert max(medians.values()) < FACTOR * max(medians["one string"], alone, LEAST_S)


def test_a_person_has_so_many_requests_at_once_and_no_more_memory(shared: Callable[..., RunningEdge]) -> None:
    """Bodies that do not end hold what they have filled."""
    edge = shared()
    limits = edge.planned.settings.limits
    head = f"POST {CHAT} HTTP/1.1\r\n{HOST}Authorization: Bearer {KEY}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    with ExitStack() as held:
        for _ in range(limits.streams):
            wire = held.enter_context(dial(edge, "127.0.0.2"))
            wire.sendall(head.encode() + bytes(BODY_BYTES - 1))
        assert edge.ask("POST", CHAT, b"{}").status == 429
        assert edge.memory_kib("VmHWM") // 1024 < limits.body_mib * (limits.streams + 16)
        assert first_token_s(edge) < LONGEST_S
