"""A limit of bytes and of time for all requests of the hub's library, and the count of the bytes received.

The library reads a reply as a whole. Without a limit, a server that ignores a range would send all weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
from huggingface_hub import get_session


@dataclass(slots=True)
class Meter:
    """The limits of a run: bytes, and seconds from its start. `received` counts the bytes of all replies."""

    limit_bytes: int
    limit_s: float
    received: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def asked(self, request: httpx2.Request) -> None:
        """Refuse a request after the deadline."""
        self._check(request)

    def answered(self, response: httpx2.Response) -> None:
        """Count the body of a reply. A reply to a range that is not a part is refused."""
        whole = response.status_code == httpx2.codes.OK and "range" in response.request.headers
        if whole and int(response.headers.get("content-length", self.limit_bytes)) > self.limit_bytes:
            raise httpx2.ReadError("it ignores ranges and sends whole files", request=response.request)
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Counted(response.stream, response.request, self)

    def add(self, count: int, request: httpx2.Request) -> None:
        """Add received bytes. Raises httpx2.HTTPError beyond a limit."""
        self.received += count
        self._check(request)

    def _check(self, request: httpx2.Request) -> None:
        if self.received > self.limit_bytes:
            raise httpx2.ReadError(f"it has sent more than {self.limit_bytes >> 20} MiB", request=request)
        if self.seconds > self.limit_s:
            raise httpx2.ReadTimeout(f"it took more than {self.limit_s:.0f} s in all", request=request)


class _Counted(httpx2.SyncByteStream):
    """A reply's body that reports its bytes to the meter."""

    def __init__(self, stream: httpx2.SyncByteStream, request: httpx2.Request, meter: Meter) -> None:
        self._stream, self._request, self._meter = stream, request, meter

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._meter.add(len(chunk), self._request)
            yield chunk

    def close(self) -> None:
        self._stream.close()


@contextmanager
def metered(limit_bytes: int, limit_s: float) -> Iterator[Meter]:
    """Count and limit what the hub's library receives inside the block."""
    client, meter = get_session(), Meter(limit_bytes, limit_s)
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks.get("request", []), meter.asked],
        "response": [*hooks.get("response", []), meter.answered],
    }
    try:
        yield meter
    finally:
        client.event_hooks = hooks
