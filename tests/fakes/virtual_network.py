"""A network without a machine: the bench's client gets the bytes of a scripted server exactly at their times.

The client's own loop, its timers and its clock run in virtual time. So a minute takes no time, the load of this machine
changes nothing, and a client that would wait for ever is seen after an hour of its time.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from fakes.scripted_servers import Reply, Script, State, document, reply
from vllm_spark.node.bench import cell_run, server, stream

# No client waits for so long.
LIMIT_S = 3600.0


class Clock:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.limit = self.now + LIMIT_S

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait. Raises TimeoutError after an hour in all."""
        self.now += seconds
        if self.now > self.limit:
            raise TimeoutError(f"no end within {LIMIT_S:.0f} s")

    def module(self) -> types.SimpleNamespace:
        """Return what stands for the module time."""
        return types.SimpleNamespace(
            perf_counter=self.read, monotonic=self.read, time=lambda: 1.79e9 + self.now, sleep=self.sleep
        )


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            self._clock.sleep(LIMIT_S if timeout is None else max(timeout, 0.0))
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now


class _Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop(self._clock)


class _Transport(asyncio.Transport):
    """Gives a protocol the pieces of the reply to what it has sent."""

    def __init__(self, wire: Wire, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.wire, self.protocol, self.closed = wire, protocol, False
        self.loop = asyncio.get_running_loop()
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        body = json.loads(bytes(data).partition(b"\r\n\r\n")[2])
        self.begun, self.reply = self.loop.time(), self.wire.reply(body)
        self._next(iter(self.reply.pieces))

    def _next(self, pieces: Iterator[Any]) -> None:
        piece = next(pieces, None)
        if piece is None:
            self.loop.call_soon(self._end)
        else:
            self.loop.call_at(self.begun + piece.at, self._deliver, piece.content, pieces)

    def _deliver(self, content: bytes, pieces: Iterator[Any]) -> None:
        if self.closed:
            return
        if content:
            self.protocol.data_received(content)
        self._next(pieces)

    def _end(self) -> None:
        if self.closed:
            return
        self.wire.ended(self.reply)
        if self.reply.end == "reset":
            self.protocol.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
        elif self.reply.end not in ("stall", "open"):
            self.protocol.connection_lost(None)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.wire.ended(self.reply)

    def abort(self) -> None:
        self.close()


class Wire:
    """A scripted server as the client sees it. `log` is as the server's own."""

    def __init__(self, script: Script) -> None:
        self.script, self.state = script, State()
        self._open: list[Reply] = []

    @property
    def log(self) -> list[dict[str, Any]]:
        return self.state.log

    def reply(self, body: Mapping[str, Any]) -> Reply:
        """Return the reply to a completion."""
        self.state.completions += 1
        self.state.running += 1
        planned = reply(self.script, self.state.completions, dict(body))
        tokens = [one for piece in planned.pieces for one in piece.tokens]
        self.log.append({"prompt": planned.prompt, "max_tokens": body.get("max_tokens"), "tokens": tokens})
        self._open.append(planned)
        return planned

    def ended(self, planned: Reply) -> None:
        """Count a reply, once."""
        if any(planned is one for one in self._open):
            self._open = [one for one in self._open if one is not planned]
            self.state.finished(self.script, planned, whole=True)

    def request(self, endpoint: stream.Endpoint, path: str, data: bytes | None, *_: float) -> tuple[int, bytes]:
        """Return the reply to a request that is not a completion, as node.bench.server.request."""
        return document(self.script, self.state, path, json.loads(data) if data else {})


@contextmanager
def network(script: Script) -> Iterator[Wire]:
    """Put a scripted server in the place of every server, and yield it."""
    wire, clock = Wire(script), Clock()

    async def connect(_: stream.Endpoint, client: Any) -> asyncio.Transport:
        return _Transport(wire, client())

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy(clock))
    try:
        with (
            mock.patch.object(stream, "_connect", connect),
            mock.patch.object(stream, "time", clock.module()),
            mock.patch.object(server, "time", clock.module()),
            mock.patch.object(cell_run, "time", clock.module(), create=True),
            mock.patch.object(server, "request", wire.request),
        ):
            yield wire
    finally:
        asyncio.set_event_loop_policy(before)
