"""The rate of TCP over each subnet of the fabric, in both directions. Runs on all hosts at the same time.

perftest's ib_write_bw, which DGX OS has, measures RDMA alone: it needs an HCA, a second program that starts its server,
and it does not show whether a firewall lets TCP through. iperf3 is not on DGX OS. Standard library alone.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypedDict

# One stream is limited by one CPU core.
STREAMS = 8
BLOCK_BYTES = 1 << 20
RETRY_S = 0.2


class RailResult(TypedDict):
    """What this host received over one subnet. `error` is empty, or says why there is no rate."""

    netdev: str
    received_bytes: int
    seconds: float
    error: str


def measure(rails: Sequence[Mapping[str, Any]], *, port: int, seconds: float, wait_s: float) -> list[RailResult]:
    """Send to the peer and receive from it over each rail in its turn. A rail has netdev, own and peer (addresses),
    `turn`, and `first`, which is true at exactly one of its two ends: that one sends first.

    A turn has its own port, so that a host that is early waits for its own peer and meets no other. The peer has
    `wait_s` to appear, beside the turns before.
    """
    began = time.monotonic()
    return [turn(rail, port + rail["turn"], seconds, began + wait_s + rail["turn"] * 4 * seconds) for rail in rails]


def turn(rail: Mapping[str, Any], port: int, seconds: float, deadline: float) -> RailResult:
    """Measure one rail in both directions."""
    with ExitStack() as stack:
        listener = listen(stack, rail["own"], port)
        if isinstance(listener, str):
            return RailResult(netdev=rail["netdev"], received_bytes=0, seconds=0.0, error=listener)
        if rail["first"]:
            error = send(rail["own"], rail["peer"], port, seconds, deadline)
            result = receive(rail["netdev"], listener, seconds, deadline + 2 * seconds)
        else:
            result = receive(rail["netdev"], listener, seconds, deadline)
            error = send(rail["own"], rail["peer"], port, seconds, deadline + 2 * seconds)
    return result if result["error"] or not error else {**result, "error": f"sending: {error}"}


def listen(stack: ExitStack, address: str, port: int) -> socket.socket | str:
    """Return a listener, or why there is none."""
    try:
        listener = stack.enter_context(socket.create_server((address, port), backlog=STREAMS))
    except OSError as error:
        return f"{address} port {port}: {error.strerror}"
    return listener


def send(own: str, peer: str, port: int, seconds: float, deadline: float) -> str:
    """Send for this many seconds over several streams. Returns the error, or an empty text."""
    with ExitStack() as stack:
        streams = []
        for _ in range(STREAMS):
            stream = connect(own, peer, port, deadline)
            if isinstance(stream, str):
                return stream
            streams.append(stack.enter_context(stream))
        until = time.monotonic() + seconds
        errors: list[str] = []
        in_threads(lambda stream: pour(stream, until, errors), streams)
        return errors[0] if errors else ""


def connect(own: str, peer: str, port: int, deadline: float) -> socket.socket | str:
    """Return a connection from an address of this host, or the last error at the deadline."""
    while True:
        left_s = deadline - time.monotonic()
        try:
            return socket.create_connection((peer, port), timeout=max(left_s, 0.1), source_address=(own, 0))
        except OSError as error:
            if left_s <= RETRY_S:
                return f"{peer} port {port}: {error.strerror or error}"
        time.sleep(RETRY_S)


def pour(stream: socket.socket, until: float, errors: list[str]) -> None:
    block = bytes(BLOCK_BYTES)
    try:
        while time.monotonic() < until:
            stream.sendall(block)
    except OSError as error:
        errors.append(str(error.strerror or error))


def receive(netdev: str, listener: socket.socket, seconds: float, deadline: float) -> RailResult:
    """Return what the peer sent over its streams, and the seconds from the first connection to the end of the last."""
    result = RailResult(netdev=netdev, received_bytes=0, seconds=0.0, error="")
    with ExitStack() as stack:
        streams = []
        for _ in range(STREAMS):
            listener.settimeout(max(deadline - time.monotonic(), 0.1))
            try:
                streams.append(stack.enter_context(listener.accept()[0]))
            except OSError:
                own, port = listener.getsockname()[:2]
                return {**result, "error": f"no connection came to {own} port {port}"}
        began = time.monotonic()
        counts: list[int] = []
        for stream in streams:
            stream.settimeout(seconds + max(deadline - began, 0.1))
        in_threads(lambda stream: counts.append(drain(stream)), streams)
        return {**result, "received_bytes": sum(counts), "seconds": time.monotonic() - began}


def drain(stream: socket.socket) -> int:
    """Return the bytes that arrive until the peer closes the stream or is silent for too long."""
    buffer, total = bytearray(BLOCK_BYTES), 0
    try:
        while received := stream.recv_into(buffer):
            total += received
    except OSError:
        return total
    return total


def in_threads(work: Callable[[socket.socket], None], streams: Sequence[socket.socket]) -> None:
    """Run a function for each stream at the same time. The interpreter's lock is free while the kernel copies."""
    threads = [threading.Thread(target=work, args=(stream,), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
