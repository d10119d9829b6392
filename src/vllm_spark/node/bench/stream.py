"""Send HTTP requests at once and record when each event of their responses arrives.

Arrival times are taken in the protocol's callback, which reads frames and lines and leaves the JSON of the events until
the last response has ended. So parsing one stream cannot delay the arrival times of another one. A timer in the same
loop measures how late the client itself is.
"""

from __future__ import annotations

import asyncio
import http
import json
import ssl
import statistics
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_spark.node import unix_http
from vllm_spark.node.bench.chunks import has_token
from vllm_spark.node.bench.reader import Reader

# The longest wait for the first token: a prefill of 100,000 tokens takes about a minute on a GB10.
FIRST_TOKEN_S = 900.0
# The longest gap between two tokens of a stream. Bytes without one, such as a gateway's pings, keep nothing alive.
GAP_S = 60.0
# Interval of the progress and of the checks for a stall.
TICK_S = 0.5
# Interval of the timer that measures the client's own lag.
LAG_TICK_S = 0.02
LAG_PERCENT = 99
# A stream of more events has no end: events without a token, or tokens that nobody asked for.
MOST_EVENTS_PER_TOKEN, MORE_EVENTS = 16, 10_000
Reason = Literal["", "refused", "stalled", "endless"]


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
    """The response to one request as it arrived. Times are time.perf_counter() in seconds.

    `error` is the text of a connection that failed, or why the client ended it; `reason` is the id of that. `lag_ms` is
    how late the client's timer was meanwhile, the 99th percentile.
    """

    sent: float = 0.0
    reader: Reader = field(default_factory=Reader)
    ended: float = 0.0
    error: str = ""
    reason: Reason = ""
    lag_ms: float = 0.0

    def give_up(self, reason: Reason, error: str) -> None:
        """Note that the client ends it."""
        self.ended, self.reason, self.error = time.perf_counter(), reason, error


class _Client(asyncio.Protocol):
    """Records one response until its end."""

    def __init__(self, request: bytes, recording: Recording, done: asyncio.Future[None]) -> None:
        self.request = request
        self.recording = recording
        self.done = done
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self.transport = transport
        self.recording.sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.recording.reader.feed(time.perf_counter(), data):
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if error and not self.done.done():
            self.recording.error = str(error) or type(error).__name__
        self.recording.reader.close()
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
    recordings = [Recording() for _ in bodies]
    pairs = zip(bodies, recordings, strict=True)
    tasks = [asyncio.create_task(_post(endpoint, path, body, recording)) for body, recording in pairs]
    lags: list[float] = []
    timer = asyncio.create_task(_measure_lag(lags))
    try:
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=TICK_S)
            watch(recordings)
        for task in tasks:
            task.result()  # a fault of this program is not a fault of the server
    finally:
        for task in (*tasks, timer):
            task.cancel()
    for recording in recordings:
        recording.lag_ms = 1000 * percentile(lags, LAG_PERCENT)
    return recordings


async def _measure_lag(lags: list[float]) -> None:
    """Append how late each of the timer's ticks was, in seconds."""
    while True:
        due = time.perf_counter() + LAG_TICK_S
        await asyncio.sleep(LAG_TICK_S)
        lags.append(max(0.0, time.perf_counter() - due))


async def _post(endpoint: Endpoint, path: str, body: Mapping[str, Any], recording: Recording) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    recording.sent = time.perf_counter()
    request = _request(endpoint, path, body)
    try:
        connect = _connect(endpoint, lambda: _Client(request, recording, done))
        transport = await asyncio.wait_for(connect, GAP_S)
    except (OSError, TimeoutError) as error:
        recording.give_up("refused", str(error) or "no connection in time")
        return
    try:
        await _wait(done, recording, MORE_EVENTS + MOST_EVENTS_PER_TOKEN * int(body.get("max_tokens", 0)))
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


async def _wait(done: asyncio.Future[None], recording: Recording, most_events: int) -> None:
    """Wait for the end of a response, or end it and note why."""
    patience = _Patience(recording)
    while not done.done():
        left = patience.left(time.perf_counter())
        if left <= 0:
            recording.give_up("stalled", f"no token for {patience.limit_s:.0f} s")
            return
        if len(recording.reader.events) > most_events:
            recording.give_up("endless", f"no end after {len(recording.reader.events)} events")
            return
        # The first token shortens the limit, so the wait is short.
        await asyncio.wait([done], timeout=min(left, TICK_S))


class _Patience:
    """How long a response may go on without a token: events are looked at until the first one is found, and then only
    when the time is over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._since = recording.sent
        self._looked = 0  # events
        self.limit_s = FIRST_TOKEN_S

    def left(self, now: float) -> float:
        """Return the seconds that are left."""
        if self.limit_s == FIRST_TOKEN_S or now >= self._since + self.limit_s:
            self._look()
        return self._since + self.limit_s - now

    def _look(self) -> None:
        reader = self._recording.reader
        new = reader.events[self._looked :]
        self._looked += len(new)
        if found := next((event for event in reversed(new) if has_token(event)), None):
            self._since, self.limit_s = found.at, GAP_S
        elif reader.status not in (0, http.HTTPStatus.OK):
            self._since, self.limit_s = reader.head_at, GAP_S


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile, between two values by their distance; 0 without values."""
    if len(values) < 2:  # noqa: PLR2004 - of one value every percentile is that value
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


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
