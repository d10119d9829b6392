"""A server that streams chat completions by a script, to the millisecond: what a client must measure is known before.

    python tests/fakes/scripted_engine.py SCRIPT.json [PORT]

Prints its port, then serves until its standard input ends. Request n gets the script's stream n, modulo their number.
Without a GPU or a model it is a stand-in for the engine's stream alone; tests of the engine's behaviour use the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class Event:
    """An event at a time in seconds after the request: token ids (None: the server sends none) and their text."""

    at: float
    ids: list[int] | None = None
    content: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """A response. With a `body` it is that JSON and not a stream.

    `ending`: done, cut (the connection ends), stall (nothing more comes), silent (no byte comes), closed (the
    connection ends without a byte), error (an event says so).
    """

    events: list[Event] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    status: int = 200
    body: str = ""
    ending: str = "done"


@dataclass(slots=True)
class ScriptedEngine:
    """The server. `counters` are lines of /metrics. A finished stream adds `moves`, `counts_after_s` later.

    `heads` are the headers of all requests; `headers` are sent with documents, beside the usual ones. `abandoned`
    counts the clients that left a response that stalls. With `turns` an event waits for its release instead of its
    time: what a client has received by then has not been held back, whatever else this machine does.
    """

    streams: Sequence[Stream]
    counters: dict[str, float] = field(default_factory=dict)
    moves: dict[str, float] = field(default_factory=dict)
    version: str = "0.21.0"
    counts_after_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    abandoned: int = 0
    turns: threading.Semaphore | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, port: int = 0) -> int:
        """Listen on the loopback address and return the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return int(server.sockets[0].getsockname()[1])

    async def start_unix(self, path: str) -> asyncio.Server:
        """Listen on a unix socket."""
        return await asyncio.start_unix_server(self._serve, path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        begun = asyncio.get_running_loop().time()
        self.heads.append(head)
        method, path, _ = head.split(" ", 2)
        lines = [line.split(":", 1) for line in head.splitlines() if ":" in line]
        length = int({name.lower(): value for name, value in lines}.get("content-length", "0"))
        body = json.loads(await reader.readexactly(length)) if length else {}
        if method == "POST" and path == "/v1/chat/completions":
            stream = self.streams[len(self.requests) % len(self.streams)]
            self.requests.append(body)
            if stream.ending == "silent":
                await self._wait_for_the_end(reader)
            if stream.ending in ("silent", "closed"):
                return
            await self._stream(stream, writer, begun)
            if stream.ending == "stall":
                await self._wait_for_the_end(reader)
            writer.close()
            await asyncio.sleep(self.counts_after_s)
            for name, value in self.moves.items():
                self.counters[name] = self.counters.get(name, 0.0) + value
            return
        found = self._document(path, body)
        status, content = (404, b"{}") if found is None else (200, found)
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        more += f"Content-Type: {'text/plain' if path == '/metrics' else 'application/json'}\r\n"
        head = f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    def _document(self, path: str, body: dict[str, Any]) -> bytes | None:
        """Return the response to a request that is not a completion, None for a path that the server does not have."""
        if path.partition("?")[0] == "/metrics":
            return "".join(f"{name} {value}\n" for name, value in self.counters.items()).encode()
        documents: dict[str, dict[str, Any]] = {"/v1/models": {"data": [{"id": MODEL, "max_model_len": 131072}]}}
        if self.version:
            documents |= {
                "/version": {"version": self.version},
                "/tokenize": {"count": len(body.get("prompt", "").split())},
            }
        return json.dumps(documents[path]).encode() if path in documents else None

    async def _wait_for_the_end(self, reader: asyncio.StreamReader) -> None:
        """Wait until the client has gone."""
        await reader.read()
        self.abandoned += 1

    async def _stream(self, stream: Stream, writer: asyncio.StreamWriter, begun: float) -> None:
        if stream.body or stream.status != 200:
            content = stream.body.encode()
            head = f"HTTP/1.1 {stream.status} X\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + content)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        loop = asyncio.get_running_loop()
        for event in stream.events:
            if self.turns is None:
                await asyncio.sleep(begun + event.at - loop.time())
            else:
                await _turn(self.turns)
            _event(writer, chunk_of(event))
        if stream.ending in {"cut", "stall"}:
            return
        if stream.ending == "error":
            _event(writer, {"error": {"message": "EngineCore encountered an issue", "code": 500}})
        if stream.usage is not None:
            _event(writer, {"choices": [], "usage": stream.usage})
        _frame(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _turn(turns: threading.Semaphore) -> None:
    while not turns.acquire(blocking=False):
        await asyncio.sleep(0.005)


def chunk_of(event: Event) -> dict[str, Any]:
    """Return the event as a chunk of a chat completion."""
    delta = {name: text for name, text in (("content", event.content), ("reasoning", event.reasoning)) if text}
    choice: dict[str, Any] = {"index": 0, "delta": delta or {"role": "assistant", "content": ""}}
    return {"choices": [choice if event.ids is None else {**choice, "token_ids": event.ids}]}


def _event(writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
    _frame(writer, b"data: " + json.dumps(document).encode() + b"\n\n")


def _frame(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n" % len(content) + content + b"\r\n")


def to_json(streams: Sequence[Stream]) -> str:
    """Return the script of a program as JSON."""
    return json.dumps([asdict(stream) for stream in streams])


def from_json(text: str) -> list[Stream]:
    """Return the streams of a script."""
    return [Stream(**{**one, "events": [Event(**event) for event in one["events"]]}) for one in json.loads(text)]


@contextlib.contextmanager
def process(streams: Sequence[Stream], folder: Path) -> Iterator[str]:
    """Run a scripted engine as a process and yield its URL. `folder` gets its script."""
    script = folder / "script.json"
    script.write_text(to_json(streams), encoding="utf-8")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, __file__, str(script)], text=True, **pipes) as engine:
        assert engine.stdout is not None
        assert engine.stdin is not None
        yield f"http://127.0.0.1:{engine.stdout.readline().strip()}"
        engine.stdin.close()


async def _main(script: Path, port: int) -> None:
    engine = ScriptedEngine(from_json(script.read_text(encoding="utf-8")))
    print(await engine.start(port), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
