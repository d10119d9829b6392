"""Send HTTP requests at once and record when each piece of their responses arrives.

Arrival times are taken in the protocol's callback, and nothing is parsed before the last response has ended. So parsing
one stream cannot delay the arrival times of another one.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.node import unix_http

# The longest wait for the first byte: a prefill of 100,000 tokens takes about a minute on a GB10.
FIRST_BYTE_S = 900.0
# The longest gap between two pieces of a stream.
GAP_S = 60.0
# Interval of the progress and of the checks for a stall.
TICK_S = 0.5
END_OF_EVENTS = b"data: [DONE]"
END_OF_CHUNKS = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server. `base` is its URL without `/v1`, or `unix:SOCKET` of a closed engine. `key` is sent
    as a bearer token, if not empty."""

    base: str
    key: str = field(default="", repr=False)

    @property
    def socket(self) -> str:
        """The path of its unix socket; empty if it has a URL."""
        return self.base.removeprefix(unix_http.SCHEME) if self.base.startswith(unix_http.SCHEME) else ""

    @property
    def host(self) -> str:
        """The value of the header Host."""
        return "localhost" if self.socket else urllib.parse.urlsplit(self.base).netloc

    def path(self, path: str) -> str:
        """Return the path of a request, below the path of `base`."""
        return path if self.socket else urllib.parse.urlsplit(self.url(path)).path

    def url(self, path: str) -> str:
        """Return the URL of a path that starts with a slash."""
        return self.base.rstrip("/") + path

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(slots=True)
class Recording:
    """The response to one request as it arrived. Times are time.perf_counter() in seconds."""

    sent: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float = 0.0
    error: str = ""  # the system's text, if the connection failed


class _Client(asyncio.Protocol):
    """Records one response until its end."""

    def __init__(self, request: bytes, recording: Recording, done: asyncio.Future[None]) -> None:
        self.request = request
        self.recording = recording
        self.done = done
        self.transport: asyncio.Transport | None = None
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self.transport = transport
        self.recording.sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.recording.pieces.append((time.perf_counter(), data))
        self.tail = (self.tail + data)[-32:]
        if self.tail.endswith(END_OF_CHUNKS) or END_OF_EVENTS in self.tail:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if error:
            self.recording.error = str(error) or type(error).__name__
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.recording.ended = time.perf_counter()
            self.done.set_result(None)
        if self.transport:
            self.transport.close()


Watch = Callable[[Sequence[Recording]], None]


def no_watch(recordings: Sequence[Recording]) -> None:
    """Ignore the progress of a run."""


def post_all(
    endpoint: Endpoint, path: str, bodies: Sequence[Mapping[str, Any]], watch: Watch = no_watch
) -> list[Recording]:
    """Send all bodies at once, each over its own connection, and return their recordings in order.

    `watch` is called twice a second with the recordings so far. A connection that fails or stalls ends its recording
    with `error`; the others continue.
    """
    return asyncio.run(_post_all(endpoint, path, bodies, watch))


async def _post_all(
    endpoint: Endpoint, path: str, bodies: Sequence[Mapping[str, Any]], watch: Watch
) -> list[Recording]:
    requests = [_request(endpoint, path, body) for body in bodies]
    recordings = [Recording() for _ in requests]
    pairs = zip(requests, recordings, strict=True)
    tasks = [asyncio.create_task(_post(endpoint, request, recording)) for request, recording in pairs]
    try:
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=TICK_S)
            watch(recordings)
        for task in tasks:
            task.result()  # a fault of this program is not a fault of the server
    finally:
        for task in tasks:
            task.cancel()
    return recordings


async def _post(endpoint: Endpoint, request: bytes, recording: Recording) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    recording.sent = time.perf_counter()
    try:
        connect = _connect(endpoint, lambda: _Client(request, recording, done))
        transport = await asyncio.wait_for(connect, GAP_S)
    except (OSError, TimeoutError) as error:
        recording.ended = time.perf_counter()
        recording.error = str(error) or "no connection in time"
        return
    try:
        await _wait(done, recording)
    finally:
        transport.abort()


async def _connect(endpoint: Endpoint, client: Callable[[], _Client]) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    if endpoint.socket:
        connected = unix_http.connect(endpoint.socket, GAP_S)
        connected.setblocking(False)
        transport, _ = await loop.create_unix_connection(client, sock=connected)
        return transport
    parts = urllib.parse.urlsplit(endpoint.base)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    transport, _ = await loop.create_connection(client, parts.hostname or "", port, ssl=secure)
    return transport


async def _wait(done: asyncio.Future[None], recording: Recording) -> None:
    """Wait for the end of a response, or write into its `error` that nothing has arrived for too long."""
    while not done.done():
        last = recording.pieces[-1][0] if recording.pieces else recording.sent
        limit = GAP_S if recording.pieces else FIRST_BYTE_S
        left = last + limit - time.perf_counter()
        if left <= 0:
            recording.ended = time.perf_counter()
            recording.error = f"nothing arrived for {limit:.0f} s"
            return
        # The first piece shortens the limit, so the wait is short.
        await asyncio.wait([done], timeout=min(left, TICK_S))


def _request(endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    headers = {
        "Host": endpoint.host,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Accept": "text/event-stream",
        "Connection": "close",
        **endpoint.headers(),
    }
    lines = [f"POST {endpoint.path(path)} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + content
