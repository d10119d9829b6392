"""Requests that an edge must refuse, sent to the real one. Standard library alone: a Spark and the controller use it.

No request has a body for the engine, and none gets past the edge: a probe costs the model nothing.
"""

from __future__ import annotations

import hashlib
import re
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

TIMEOUT_S = 10.0
# Beyond the limit of the header, until a connection counts as not cut.
DRIP_MORE_S = 5.0
DRIP_EVERY_S = 0.5
CHAT = "/v1/chat/completions"
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
METRICS_PORT = re.compile(r"frontend edge_metrics\n +bind \S+:(\d+)")
LENGTH = re.compile(rb"content-length: *(\d{1,18})", re.IGNORECASE)
MAX_ANSWER_BYTES = 1 << 16
# Strangers: their addresses, the connections of each, what one sends of a header that does not end, and for how long it
# tries to.
STRANGERS, EACH = tuple(f"127.0.0.{number}" for number in range(2, 10)), 8
PART, PARTS, SEND_S = b"x" * 16000, 64, 2.0
# Beyond the limit of silence, until a connection counts as one that does not end.
SILENCE_MORE_S = 5.0
# HTTP/2: a client's preface with its empty SETTINGS, and the types of the frames of a header.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HEADERS, CONTINUATION = 1, 9
HTTP1, HTTP2 = "http/1.1", "h2"
ODD_HOST = "not-this-spark.invalid"


class Target(NamedTuple):
    """An edge. `name` is the Host that it answers to, `authority` the file with its authority: empty to trust all."""

    address: str
    port: int
    tls: bool
    name: str
    authority: str = ""


class Limits(NamedTuple):
    """Limits of a configuration, with which the probe goes one too far. `metrics_port`: 0 if nothing listens there."""

    requests_per_minute: int
    streams: int
    body_bytes: int
    header_timeout_s: int
    connections: int
    silence_s: int
    metrics_port: int = 0


def limits_of(config: str) -> Limits:
    """Return the limits in the text of haproxy.cfg. Raises ValueError if one is missing."""
    patterns = (
        r"sc0_http_req_rate gt (\d+)",
        r"sc0_trackers gt (\d+)",
        r"content-length\) gt (\d+)",
        r"timeout http-request (\d+)s",
        r"sc1_conn_cur gt (\d+)",
        r"timeout client (\d+)s",
    )
    found = {pattern: re.search(pattern, config) for pattern in patterns}
    if missing := [pattern for pattern, match in found.items() if not match]:
        raise ValueError(f"haproxy.cfg has no line like {missing[0]}")
    metrics = METRICS_PORT.search(config)
    limits = Limits(*(int(match[1]) for match in found.values() if match))
    return limits._replace(metrics_port=int(metrics[1]) if metrics else 0)


def outside(target: Target, unlisted: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return what a client without a key sees: statuses, 0 for a cut connection."""
    try:
        return {
            "no_key": status(target, head(target, "POST", CHAT)),
            "unlisted": {f"{method} {path}": status(target, head(target, method, path)) for method, path in unlisted},
            "host": status(target, head(target._replace(name=ODD_HOST), "POST", CHAT)),
        }
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def shown(target: Target) -> dict[str, str]:
    """Return the SHA-256 of the certificates that a client gets which asks by the target's name, and by no name; empty
    without TLS. Raises OSError."""
    found = {}
    for asked, name in (("by_name", target.name), ("by_address", "")):
        with connection(target._replace(name=name)) as wire:
            certificate = wire.getpeercert(binary_form=True) if isinstance(wire, ssl.SSLSocket) else None
        found[asked] = hashlib.sha256(certificate).hexdigest() if certificate else ""
    return found


def inside(
    target: Target,
    key: str,
    limits: Limits,
    *,
    thorough: bool = True,
    memory: Callable[[], int] = int,
) -> dict[str, Any]:
    """Return what a client with a key sees that goes one too far, or that asks while strangers attack. The limit of
    requests comes last: it uses them up. `memory` returns the bytes of the edge's first stage.

    If not `thorough`, one request is sent: the others wait for the end of a timeout or use up a minute's requests.
    """
    try:
        large = {"body": status(target, head(target, "POST", CHAT, key, limits.body_bytes + 1)), "thorough": thorough}
        if not thorough:
            return large
        return {
            **large,
            "siege": siege(target, key, limits, memory),
            "drip": drip(target, limits.header_timeout_s),
            # A client of so many connections is cut before its key is looked at.
            "streams": one_stream_more(target, key, limits.streams)
            if limits.streams + 2 < limits.connections
            else None,
            "rate": one_request_more(target, key, limits.requests_per_minute),
        }
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def siege(target: Target, key: str, limits: Limits, memory: Callable[[], int]) -> dict[str, Any]:
    """Let strangers attack, and return by attack how long a client with a key waited for its answer (milliseconds, -1:
    in vain), after how many seconds all silent connections had ended (-1: they did not), and by how many bytes the
    edge's first stage grew. The silent ones stay while the others come."""
    before, waited, most = memory(), {}, 0
    began = time.monotonic()
    with ExitStack() as silent:
        wires = besiege(silent, target, "", ())
        waited["silence"] = answer_ms(target, key)
        for name, (protocol, parts) in ATTACKS.items():
            with ExitStack() as held:
                besiege(held, target, protocol, parts(target.name))
                waited[name] = answer_ms(target, key)
                most = max(most, memory())
        if limits.metrics_port:
            with ExitStack() as held:
                besiege(held, target._replace(port=limits.metrics_port), "", ())
                waited["metrics port"] = answer_ms(target, key)
        most_s = limits.silence_s + SILENCE_MORE_S
        ended = all_ended(wires, began + most_s)
    return {
        "waited_ms": waited,
        # The attacks may have taken longer than the silent ones had.
        "silence_s": round(min(time.monotonic() - began, most_s), 1) if ended else -1,
        "grown_bytes": max(most - before, 0),
    }


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


def answer_ms(target: Target, key: str) -> int:
    """Return how long a client with a key waits for an answer, in milliseconds; -1 without one."""
    began = time.monotonic()
    try:
        answered = status(target, head(target, "POST", CHAT, key))
    except OSError:
        answered = 0
    return round(1000 * (time.monotonic() - began)) if answered else -1


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


def uninvited(target: Target) -> dict[str, Any]:
    """Return what a client without a certificate gets at the address for other edges: a status, 0 if it is cut."""
    try:
        with connection(target) as wire:
            wire.sendall(head(target, "GET", "/serves"))
            return {"status": answer(wire)}
    except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
        return {"status": 0}
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def head(target: Target, method: str, path: str, key: str = "", length: int = 0) -> bytes:
    """Return the header of a request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {target.name}", f"Content-Length: {length}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, "", ""]).encode()


@contextmanager
def connection(target: Target) -> Iterator[socket.socket]:
    """Yield a connection, with TLS if the edge has it."""
    with socket.create_connection((target.address, target.port), timeout=TIMEOUT_S) as wire:
        if not target.tls:
            yield wire
            return
        context = ssl.create_default_context(cafile=target.authority or None)
        if not target.authority:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(wire, server_hostname=target.name or None) as secure:
            yield secure


def status(target: Target, request: bytes) -> int:
    """Return the status of the answer to one request, 0 if the connection is cut."""
    with connection(target) as wire:
        wire.sendall(request)
        return answer(wire)


def answer(wire: socket.socket) -> int:
    """Read one answer with its body and return its status, 0 if the connection is cut or silent."""
    received = b""
    try:
        while b"\r\n\r\n" not in received and len(received) < MAX_ANSWER_BYTES:
            if not (part := wire.recv(4096)):
                return 0
            received += part
        start, _, body = received.partition(b"\r\n\r\n")
        length = LENGTH.search(start)
        missing = min(int(length[1]), MAX_ANSWER_BYTES) - len(body) if length else 0
        while missing > 0 and (part := wire.recv(missing)):
            missing -= len(part)
    except (ConnectionError, TimeoutError, ssl.SSLError):
        return 0
    return status_of(received)


def status_of(received: bytes) -> int:
    """Return the status of an answer, 0 if nothing has come that is one."""
    match = STATUS.match(received)
    return int(match[1]) if match else 0


def drip(target: Target, limit_s: int) -> dict[str, float]:
    """Send a header that does not end, and return after how many seconds the edge cuts it; -1 if it does not."""
    with connection(target) as wire:
        began = time.monotonic()
        wire.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {target.name}\r\n".encode())
        wire.settimeout(DRIP_EVERY_S)
        while (seconds := time.monotonic() - began) < limit_s + DRIP_MORE_S:
            try:
                wire.sendall(b"X: y\r\n")
                if not wire.recv(4096):
                    return {"seconds": round(seconds, 1)}
            except TimeoutError:
                continue
            except (ConnectionError, ssl.SSLError):
                return {"seconds": round(seconds, 1)}
    return {"seconds": -1}


def one_stream_more(target: Target, key: str, limit: int) -> int:
    """Return the first status among requests that are one more than a key may have at once; 0 if none is answered.

    Each waits for a body in vain, and the edge may read their headers in any order: it refuses the one that it reads
    last. A short request in the place of that one might end before the edge has read the others.
    """
    with ExitStack() as open_ones:
        wires = [open_ones.enter_context(connection(target)) for _ in range(limit + 1)]
        for wire in wires:
            wire.sendall(head(target, "POST", CHAT, key, length=1))
        return first_answer(wires)


def first_answer(wires: Iterable[socket.socket]) -> int:
    """Return the status of the answer that comes first, 0 if that connection is cut or all are silent."""
    with selectors.DefaultSelector() as waiting:
        for wire in wires:
            wire.setblocking(False)
            waiting.register(wire, selectors.EVENT_READ, wire)
        deadline = time.monotonic() + TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            for ready, _ in waiting.select(left):
                try:
                    return status_of(ready.data.recv(4096))
                except ssl.SSLWantReadError:
                    continue  # a message of TLS itself
                except (ConnectionError, ssl.SSLError):
                    return 0
    return 0


def one_request_more(target: Target, key: str, limit: int) -> int:
    """Return the status of the first request beyond those of a minute, all of them on few connections."""
    seen, left = 0, limit + 1
    while left > 0:
        with connection(target) as wire:
            while left > 0:
                left -= 1
                wire.sendall(head(target, "POST", CHAT, key))
                if (seen := answer(wire)) in (0, 429):
                    break
        if seen == 429:  # noqa: PLR2004
            break
    return seen
