"""Requests that an edge must refuse, sent to the real one. Standard library alone: a Spark and the controller use it.

No request has a body for the engine, and none gets past the edge: a probe costs the model nothing.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

TIMEOUT_S = 10.0
CHAT = "/v1/chat/completions"
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
LENGTH = re.compile(rb"content-length: *(\d{1,18})", re.IGNORECASE)
MAX_ANSWER_BYTES = 1 << 16
ODD_HOST = "not-this-spark.invalid"


class Target(NamedTuple):
    """An edge. `name` is the Host that it answers to, `authority` the file with its authority: empty to trust all."""

    address: str
    port: int
    tls: bool
    name: str
    authority: str = ""


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
