"""Attacks on a running edge: by strangers of eight addresses while a client with a key asks, and by a client with a key
that goes one too far."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import (
    Target,
    answer,
    connection,
    head,
    status,
    status_of,
)

from fakes.running_edge import KEY, RunningEdge
from vllm_spark.core.units import MIB

CHAT = "/v1/chat/completions"
TOO_LARGE, TOO_MANY = 413, 429
# Limits that an attack reaches in seconds. The strangers open as many connections as there may be.
SMALL = {"streams": 4, "requests_per_minute": 40, "header_timeout_s": 2, "body_mib": 1, "connections": 64}
SILENCE_S = 3
# While strangers attack: how long a client with a key may wait, and how much both stages may grow.
WAIT_S, GROWN_BYTES = 2.0, 32 * MIB
# Beyond a limit, until a connection counts as one that is not cut.
MORE_S, DRIP_EVERY_S = 5.0, 0.5
FIRST_ANSWER_S = 10.0
# Strangers: their addresses, the connections of each, what one sends of a header that does not end, and for how long it
# tries to.
STRANGERS, EACH = tuple(f"127.0.0.{number}" for number in range(2, 10)), 8
PART, PARTS, SEND_S = b"x" * 16000, 64, 2.0
# HTTP/2: a client's preface with its empty SETTINGS, and the types of the frames of a header.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HEADERS, CONTINUATION = 1, 9
HTTP1, HTTP2 = "http/1.1", "h2"


def frame(kind: int, content: bytes) -> bytes:
    """Return a frame of HTTP/2 of stream 1 that does not end its header."""
    return len(content).to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 1)) + content


# Attack -> (protocol, the parts that one connection sends).
ATTACKS: dict[str, tuple[str, Callable[[str], Sequence[bytes]]]] = {
    "silence after TLS": (HTTP1, lambda _: ()),
    "a header without end": (
        HTTP1,
        lambda name: (f"GET /v1/models HTTP/1.1\r\nHost: {name}\r\nX: ".encode(), *[PART] * PARTS),
    ),
    "CONTINUATION without end": (
        HTTP2,
        lambda _: (PREFACE, frame(HEADERS, PART), *[frame(CONTINUATION, PART)] * PARTS),
    ),
    "a slow body": (
        HTTP1,
        lambda name: (f"POST {CHAT} HTTP/1.1\r\nHost: {name}\r\nContent-Length: 1000000\r\n\r\n".encode(), b"x"),
    ),
}


def broken(edge: RunningEdge) -> dict[str, object]:
    """Attack an edge with the limits SMALL and a silence of SILENCE_S. Returns the condition that does not hold -> what
    was seen. The limit of requests comes last: it uses them up."""
    settings = edge.planned.settings
    target, limits = Target(edge.address, edge.port, settings.tls != "off", "127.0.0.1"), settings.limits
    # An address that has shown a key keeps its place while strangers come.
    body = status(target, head(target, "POST", CHAT, KEY, limits.body_mib * MIB + 1))
    found = siege(edge, target)
    seconds = drip(target, limits.header_timeout_s)
    # Not before its time, for a slow network.
    if not limits.header_timeout_s - 0.5 <= seconds <= limits.header_timeout_s + 2:
        found["header"] = seconds
    statuses = {
        "body": (TOO_LARGE, body),
        "streams": (TOO_MANY, one_stream_more(target, limits.streams)),
        "rate": (TOO_MANY, one_request_more(target, limits.requests_per_minute)),
    }
    return found | {name: seen for name, (expected, seen) in statuses.items() if seen != expected}


def siege(edge: RunningEdge, target: Target) -> dict[str, object]:
    """Let strangers attack. The silent ones stay while the others come."""
    before, most, waited = edge.memory_kib(), 0, dict[str, float]()
    began = time.monotonic()
    with ExitStack() as silent:
        wires = besiege(silent, target, "", ())
        waited["silence"] = answer_s(target)
        for name, (protocol, parts) in ATTACKS.items():
            with ExitStack() as held:
                besiege(held, target, protocol, parts(target.name))
                waited[name] = answer_s(target)
                most = max(most, edge.memory_kib())
        if edge.planned.settings.metrics_port:
            with ExitStack() as held:
                besiege(held, target._replace(port=edge.planned.settings.metrics_port), "", ())
                waited["metrics port"] = answer_s(target)
        ended = all_ended(wires, max(began + SILENCE_S, time.monotonic()) + MORE_S)
    grown = 1024 * (most - before)
    print(f"\nseconds of waiting: {waited}; {grown // MIB} MiB")
    late = {name: seconds for name, seconds in waited.items() if seconds > WAIT_S}
    return {
        **({"strangers": late} if late else {}),
        **({} if ended else {"silence": "connections that say nothing stay"}),
        **({"memory": grown} if grown > GROWN_BYTES else {}),
    }


def besiege(held: ExitStack, target: Target, protocol: str, parts: Sequence[bytes]) -> list[socket.socket]:
    """Open connections of strangers that each send parts, with TLS if there is a protocol and the edge has TLS. Returns
    those that the edge has not cut, which `held` closes."""
    wires = []
    for source in STRANGERS * EACH:
        try:
            wire = held.enter_context(
                socket.create_connection((target.address, target.port), SEND_S, source_address=(source, 0))
            )
            if protocol and target.tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_alpn_protocols([protocol])
                wire = held.enter_context(context.wrap_socket(wire, server_hostname=target.name))
            for part in parts:
                wire.sendall(part)
        except OSError:
            continue
        wires.append(wire)
    return wires


def answer_s(target: Target) -> float:
    """Return how many seconds a client with a key waits for an answer, infinity without one. The edge itself answers a
    request without a body."""
    began = time.monotonic()
    try:
        answered = status(target, head(target, "POST", CHAT, KEY))
    except OSError:
        answered = 0
    return round(time.monotonic() - began, 3) if answered else float("inf")


def all_ended(wires: Iterable[socket.socket], deadline: float) -> bool:
    """Wait until the edge has ended connections on which it sends nothing. Returns False after the deadline."""
    for wire in wires:
        wire.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            while wire.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            continue
    return True


def drip(target: Target, limit_s: int) -> float:
    """Send a header that does not end, and return after how many seconds the edge cuts it, infinity if it does not."""
    with connection(target) as wire:
        began = time.monotonic()
        wire.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {target.name}\r\n".encode())
        wire.settimeout(DRIP_EVERY_S)
        while (seconds := time.monotonic() - began) < limit_s + MORE_S:
            try:
                wire.sendall(b"X: y\r\n")
                if not wire.recv(4096):
                    return seconds
            except TimeoutError:
                continue
            except (ConnectionError, ssl.SSLError):
                return seconds
    return float("inf")


def one_stream_more(target: Target, limit: int) -> int:
    """Return the first status among requests that are one more than a key may have at once; 0 if none is answered.

    Each waits for a body in vain, and the edge may read their headers in any order: it refuses the one that it reads
    last. A short request in the place of that one might end before the edge has read the others.
    """
    with ExitStack() as open_ones:
        wires = [open_ones.enter_context(connection(target)) for _ in range(limit + 1)]
        for wire in wires:
            wire.sendall(head(target, "POST", CHAT, KEY, length=1))
        return first_answer(wires)


def first_answer(wires: Iterable[socket.socket], seconds: float = FIRST_ANSWER_S) -> int:
    """Return the status of the answer that comes first, 0 if that connection is cut or all are silent."""
    with selectors.DefaultSelector() as waiting:
        for wire in wires:
            wire.setblocking(False)
            waiting.register(wire, selectors.EVENT_READ, wire)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for ready, _ in waiting.select(left):
                try:
                    return status_of(ready.data.recv(4096))
                except ssl.SSLWantReadError:
                    continue  # a message of TLS itself
                except (ConnectionError, ssl.SSLError):
                    return 0
    return 0


def one_request_more(target: Target, limit: int) -> int:
    """Return the status of the first request beyond those of a minute, all of them on few connections."""
    seen, left = 0, limit + 1
    while left > 0 and seen != TOO_MANY:
        with connection(target) as wire:
            while left > 0:
                left -= 1
                wire.sendall(head(target, "POST", CHAT, KEY))
                if (seen := answer(wire)) in (0, TOO_MANY):
                    break
    return seen
