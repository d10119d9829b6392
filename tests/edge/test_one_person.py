"""A person costs only her share: another person's first token, and the lines of the log, beside what one key or a
stranger without one can send.

`pytest -s` shows the times. A time is compared with that of the same run, beside bodies of the same size that are one
string.
"""

from __future__ import annotations

import hashlib
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from test_before_the_key import HEADERS, LONGEST_S, PREFACE, dial, encrypted
from test_streams import open_stream

from conftest import Start
from fakes.running_edge import KEY, TOKENS, RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from vllm_spark.core.units import MIB
from vllm_spark.edge import config
from waiting import until

BOB = "sk-of-bob"
BODY_BYTES = 16 * MIB
QUESTIONS = 12
# The heads of a frame that asks whether all before it has been read, and of its answer.
PING, PONG = b"\0\0\10\6\0\0\0\0\0", b"\0\0\10\6\1"
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


class Log:
    """The lines of the log, which a thread reads as they come: HAProxy drops those for which there is no room."""

    def __init__(self, edge: RunningEdge) -> None:
        self.lines: list[str] = []
        self.edge, self.ended = edge, threading.Event()
        self.thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        self.edge.log.settimeout(0.1)
        while not self.ended.is_set():
            with suppress(TimeoutError):
                self.lines.append(self.edge.log.recv(65536).decode())

    def __enter__(self) -> Log:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def of(self, who: str) -> int:
        """Return how many requests of a person have a line."""
        return sum(f" who={who} " in line for line in self.lines)


def pipelined(edge: RunningEdge, key: str, number: int) -> None:
    """Send so many requests on one connection, and take their answers."""
    request = f"GET /v1/models HTTP/1.1\r\n{HOST}{f'Authorization: Bearer {key}' if key else 'X: y'}\r\n\r\n".encode()
    with dial(edge, "127.0.0.2") as raw:
        wire = encrypted(raw, edge) if edge.planned.settings.tls != "off" else raw
        answers, left = 0, number
        while answers < number:
            if left:
                wire.sendall(request * min(left, 50))
                left -= min(left, 50)
            answers += wire.recv(1 << 20).count(b"HTTP/1.1 ")


def refused_streams(edge: RunningEdge, key: str, number: int) -> None:
    """Open more streams of one HTTP/2 connection at once than it may have."""
    fields = ((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/v1/models"), (b":authority", b"127.0.0.1"))
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
    head = struct.pack(">I", len(block))[1:] + bytes((HEADERS, 5))
    with dial(edge, "127.0.0.2") as raw, encrypted(raw, edge, "h2") as wire:
        wire.sendall(PREFACE + b"".join(head + struct.pack(">I", 2 * one + 1) + block for one in range(number)))
        wire.sendall(PING + bytes(8))
        came = b""
        while PONG not in came:
            came = came[-8:] + wire.recv(1 << 20)


def handshakes(edge: RunningEdge, key: str, number: int) -> None:
    """Open connections that speak no TLS."""
    for _ in range(number):
        with suppress(OSError), dial(edge, "127.0.0.2") as wire:
            wire.sendall(b"GET / HTTP/1.0\r\n\r\n")
            wire.recv(100)


@pytest.mark.parametrize("flood", [pipelined, refused_streams, handshakes])
def test_requests_without_a_key_leave_the_journal_to_those_with_one(
    start: Start, engine: ScriptedEngine, flood: Callable[[RunningEdge, str, int], None], tmp_path: Path
) -> None:
    program = tmp_path / "tokens.lua"
    text = TOKENS.read_text()
    program.write_text(text.replace("TELLS_S, UNTOLD = 60,", "TELLS_S, UNTOLD = 1,"))
    edge = start(limits={"requests_per_minute": 100_000}, tokens=program)
    with Log(edge) as log:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(flood, edge, "", 3000)
            asked = 0
            while not running.done():
                assert edge.ask("GET", "/v1/models").status == 200
                asked += 1
        running.result()
        until(lambda: log.of("ada") == asked)
        until(lambda: flood is refused_streams or any("came to nothing" in line for line in log.lines))
    print(f"\n{flood.__name__}: {len(log.lines) - asked} lines of 3000; the client's {asked} have all of theirs")
    assert len(log.lines) - asked < 3 * config.LINES_ADDRESS


def test_requests_of_a_person_beyond_her_limit_leave_the_journal_to_others(shared: Callable[..., RunningEdge]) -> None:
    edge = shared(limits={"requests_per_minute": 100})
    with Log(edge) as log:
        pipelined(edge, KEY, 3000)
        assert edge.ask("GET", "/v1/models", key=BOB).status == 200
        until(lambda: log.of("bob") == 1)
    assert 100 <= log.of("ada") <= 202
