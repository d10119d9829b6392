"""Clients without a key that hold connections or fill buffers: a client with a key is answered meanwhile.

The attackers have one address or eight. `pytest -s` shows what they held, the memory of both stages, and how long the
client with a key waits for its answers.
"""

from __future__ import annotations

import socket
import ssl
import statistics
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from test_http2 import curl
from test_streams import events, open_stream

from conftest import Start
from fakes.running_edge import RunningEdge
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from loopback import held_port
from vllm_spark.core.units import MIB
from vllm_spark.edge import config
from waiting import until

ATTACKERS = [f"127.0.0.{number}" for number in range(2, 10)]
# No test waits for so long: what ends a connection then is a limit of another kind.
FOREVER_S = 600
# Connections that one attacker opens, more than any address may hold.
MANY = 130
HEADER_BYTES = 16 * MIB
PART = b"x" * 60_000
# What a header may have that the first stage still reads.
FITTING = b"x" * 15_000
# What both stages may have together, and how long a client with a key may wait: one without a place would wait for the
# timeout of the headers that hold it, a minute here.
MOST_MIB, LONGEST_S = 64, 20.0
# A client's preface, its empty SETTINGS, and the types of the frames of a header.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HEADERS, CONTINUATION = 1, 9
BEGIN = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 16000000\r\n"


def dial(edge: RunningEdge, source: str, port: int = 0) -> socket.socket:
    """Return a connection from an address, before TLS."""
    return socket.create_connection((edge.address, port or edge.port), timeout=20, source_address=(source, 0))


def encrypted(wire: socket.socket, edge: RunningEdge, protocol: str = "http/1.1") -> ssl.SSLSocket:
    """Return the connection with TLS. Takes the socket."""
    context = ssl.create_default_context(cafile=str(edge.folder / "ca.crt"))
    context.set_alpn_protocols([protocol])
    return context.wrap_socket(wire, server_hostname=edge.address)


def connections(edge: RunningEdge, frontend: str = "edge_api") -> int:
    """Return how many connections a frontend has."""
    lines = edge.admin("show stat").splitlines()
    return next(int(line.split(",")[4]) for line in lines if line.startswith(f"{frontend},FRONTEND,"))


def ends(wire: socket.socket) -> bool:
    """Wait until the edge has ended a connection. Returns False if it does not."""
    try:
        while wire.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def answers(edge: RunningEdge) -> bool:
    """Return whether a client with a key gets an answer."""
    return edge.ask("GET", "/v1/models").status == 200


@pytest.mark.parametrize("way", ["before TLS", "after TLS"])
def test_connections_that_say_nothing_end(start: Start, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", 3)
    edge = start(limits={"connections": 32, "header_timeout_s": 3})
    edge.show_key()
    with ExitStack() as held:
        wires = [held.enter_context(dial(edge, source)) for source in ATTACKERS]
        if way == "after TLS":
            wires = [held.enter_context(encrypted(wire, edge)) for wire in wires]
        until(lambda: connections(edge) == len(wires) == 8)
        assert answers(edge)
        assert all(ends(wire) for wire in wires)


def frame(kind: int, content: bytes) -> bytes:
    """Return a frame of stream 1 that does not end its header."""
    return struct.pack(">I", len(content))[1:] + bytes((kind, 0, 0, 0, 0, 1)) + content


# Attack -> (the protocol in TLS, empty for none; what each connection sends, piece by piece).
ATTACKS: dict[str, tuple[str, Callable[[], Iterable[bytes]]]] = {
    "nothing, before TLS": ("", tuple),
    "nothing, after TLS": ("http/1.1", tuple),
    "half a handshake": ("", lambda: [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]),
    "a header without end": ("http/1.1", lambda: [BEGIN, *[PART] * (HEADER_BYTES // len(PART))]),
    "a header that stops": ("http/1.1", lambda: [BEGIN, FITTING]),
    "CONTINUATION without end": (
        "h2",
        lambda: [PREFACE, frame(HEADERS, PART[:16000]), *[frame(CONTINUATION, PART[:16000])] * (HEADER_BYTES // 16000)],
    ),
    "CONTINUATION that stops": ("h2", lambda: [PREFACE, frame(HEADERS, FITTING), frame(CONTINUATION, FITTING[:9000])]),
    "a body without a key": ("http/1.1", lambda: [POST, b"\r\n", *[PART] * 20]),
    "a body with a wrong key": ("http/1.1", lambda: [POST, b"Authorization: Bearer x\r\n\r\n", *[PART] * 20]),
}


def attack(edge: RunningEdge, source: str, kind: str) -> socket.socket | None:
    """Return a connection that has sent its part, None if the edge has refused or cut it."""
    protocol, parts = ATTACKS[kind]
    wire = socket.socket()
    try:
        wire = dial(edge, source)
        wire = encrypted(wire, edge, protocol) if protocol else wire
        for part in parts():
            wire.sendall(part)
    except OSError:
        wire.close()
        return None
    return wire


def answer_ms(edge: RunningEdge) -> list[float]:
    """Return how long a client with a key waits for its answers, in milliseconds. Each has a connection of its own."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        assert answers(edge)
        times.append(1000 * (time.monotonic() - began))
    return times


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("sources", [1, 8])
def test_strangers_take_neither_the_memory_nor_the_place_of_a_client(
    start: Start, sources: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", FOREVER_S)
    edge = start(limits={"header_timeout_s": 60, "requests_per_minute": 1000})
    edge.show_key()
    jobs = [source for _ in range(MANY) for source in ATTACKERS[:sources]]
    with ExitStack() as held:
        with ThreadPoolExecutor(16) as pool:
            running = pool.map(lambda source: attack(edge, source, kind), jobs)
            during = answer_ms(edge)
            for wire in running:
                if wire:
                    held.enter_context(wire)
        taken = connections(edge)
        times = [*during, *answer_ms(edge)]
        peak = edge.memory_kib("VmHWM") // 1024
    waited = f"{statistics.median(times):.0f} | {max(times):.0f}"
    print(f"\n| {kind} | {sources} | {len(jobs)} | {taken} | {peak} | {waited} |")
    assert taken <= edge.planned.settings.limits.connections // 2 + 1
    assert peak < MOST_MIB
    assert max(times) < 1000 * LONGEST_S


def test_the_address_of_a_client_may_attack_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one address may be a client with a key and a stranger."""
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", FOREVER_S)
    edge = start(limits={"header_timeout_s": 60})
    edge.show_key()
    with ExitStack() as held:
        with ThreadPoolExecutor(16) as pool:
            for wire in pool.map(lambda kind: attack(edge, "127.0.0.1", kind), [*ATTACKS] * 13):
                if wire:
                    held.enter_context(wire)
        assert edge.memory_kib("VmHWM") // 1024 < MOST_MIB
        assert answers(edge)


def test_the_port_of_the_metrics_takes_no_place_of_a_client(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", FOREVER_S)
    port = held_port()
    edge = start(metrics_from=["127.0.0.0/8"], metrics_port=port, limits={"connections": 64})
    with ExitStack() as held:
        for _ in range(70):
            with suppress(ConnectionError):
                held.enter_context(dial(edge, ATTACKERS[0], port))
        print(f"\n70 connections to the metrics: {connections(edge, 'edge_metrics')} held")
        assert answers(edge)
        # Another host reads the metrics meanwhile.
        edge.port = port
        assert edge.ask("GET", "/metrics/edge", key=None).status == 200


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
def test_the_silence_of_an_engine_ends_no_stream(
    start: Start, protocol: str, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client says nothing while the engine computes the prompt, nor between two tokens."""
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", 1)
    edge = start()
    engine.streams = [Stream([Event(4.0, content="first"), Event(8.0, content="last")])]
    with dial(edge, ATTACKERS[0]) as silent:
        if protocol == "h2":
            asked = curl(edge, "/v1/chat/completions", "-d", '{"model": "model", "stream": true}')
            lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
            assert lines[-1] == "2 200"
            assert [line for line in lines if line.startswith("data:")][-1] == "data: [DONE]"
        else:
            assert events(open_stream(edge)) == 2
        # The limit is real: in the same time the edge has ended a connection that says nothing.
        silent.settimeout(0.1)
        assert ends(silent)
