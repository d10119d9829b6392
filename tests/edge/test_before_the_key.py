"""Clients without a key that hold connections or fill buffers: a client with a key is answered meanwhile.

The attackers have addresses of their own. `pytest -s` shows what they held, and HAProxy's memory.
"""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
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

ATTACKERS = [f"127.0.0.{number}" for number in range(2, 6)]
# No test waits for so long: what ends a connection then is a limit of another kind.
FOREVER_S = 600
# Connections of one attacker, more than a quarter of the default.
MANY = 130
# Nearly a buffer.
HEADER_BYTES = 16 * MIB
PART = b"x" * 60_000
# What HAProxy needs beside the buffers, with TLS.
REST_MIB = 64
# A client's preface, its empty SETTINGS, and the types of the frames of a header.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HEADERS, CONTINUATION = 1, 9


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
    edge = start(limits={"connections": 16, "header_timeout_s": 3})
    with ExitStack() as held:
        wires = [held.enter_context(dial(edge, source)) for source in ATTACKERS for _ in range(4)]
        if way == "after TLS":
            wires = [held.enter_context(encrypted(wire, edge)) for wire in wires]
        until(lambda: connections(edge) == len(wires) == 16)
        assert answers(edge)
        assert all(ends(wire) for wire in wires)


def frame(kind: int, content: bytes) -> bytes:
    """Return a frame of stream 1 that does not end its header."""
    return struct.pack(">I", len(content))[1:] + bytes((kind, 0, 0, 0, 0, 1)) + content


def endless(protocol: str) -> Iterator[bytes]:
    """Yield the parts of a header that does not end."""
    parts = [PART] * (HEADER_BYTES // len(PART))
    if protocol == "h2":
        yield PREFACE
        yield frame(HEADERS, PART)
        yield from (frame(CONTINUATION, part) for part in parts)
    else:
        yield b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
        yield from parts


def filled(edge: RunningEdge, protocol: str) -> socket.socket | None:
    """Return a connection that has sent a header without end, None if the edge has cut it."""
    wire = socket.socket()
    try:
        wire = dial(edge, ATTACKERS[0])
        wire = encrypted(wire, edge, protocol) if edge.planned.settings.tls != "off" else wire
        for part in endless(protocol):
            wire.sendall(part)
    except OSError:
        wire.close()
        return None
    return wire


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
@pytest.mark.parametrize("tls", ["off", "own-ca"])
def test_headers_without_end_of_one_address_fill_few_buffers(
    start: Start, tls: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", FOREVER_S)
    edge = start(tls=tls, limits={"header_timeout_s": 60})
    with ExitStack() as held:
        with ThreadPoolExecutor(8) as pool:
            wires = [wire for wire in pool.map(lambda _: filled(edge, protocol), range(MANY)) if wire]
        for wire in wires:
            held.enter_context(wire)
        taken = connections(edge)
        assert answers(edge)
        peak = edge.memory_kib("VmHWM") // 1024
        print(f"\n{MANY} headers without end, {protocol}, tls {tls}: {taken} held, HAProxy's peak {peak} MiB")
    assert taken > 0
    assert peak < 256 + REST_MIB


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
