"""Measure what the edge adds to a stream: time to the first event, and events per second, against the socket.

    python tests/bench/edge.py [STREAMS]

A scripted engine on a unix socket, a real HAProxy and the client share this machine. The rounds alternate between the
socket and the edge, so that both have the same neighbours. Prints medians over the rounds.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import ssl
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from fakes import edge_cases  # noqa: E402
from fakes.running_edge import KEY, RunningEdge  # noqa: E402
from fakes.scripted_engine import Event, ScriptedEngine, Stream  # noqa: E402

ROUNDS = 7
COUNT = 100
# The most tokens per second of a Spark, all streams together, and of one stream.
MOST_OF_ALL, MOST_OF_ONE = 1000, 50
BODY = json.dumps({"model": "model", "messages": [{"role": "user", "content": "x" * 4000}], "stream": True}).encode()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the engine: its socket, or the edge with a TLS context."""

    name: str
    socket: str = ""
    port: int = 0
    tls: ssl.SSLContext | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.socket:
            return await asyncio.open_unix_connection(self.socket)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[float, float]:
    """Return (seconds to the first event, events per second) of one request on an open connection."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    began = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    first, count = 0.0, 0
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - began
            count += 1
        if line.startswith(b"data: [DONE]"):
            break
    ended = time.perf_counter() - began
    assert count == COUNT
    writer.close()
    return first, count / ended


async def measure(way: Way, streams: int) -> tuple[float, float]:
    """Return (median milliseconds to the first event, events per second of all streams together). The time of the
    connections and of their TLS handshakes is not counted: clients keep their connections."""
    connections = [await way.open() for _ in range(streams)]
    results = await asyncio.gather(*(stream(*connection) for connection in connections))
    return 1000 * statistics.median(first for first, _ in results), sum(rate for _, rate in results)


def events(streams: int) -> list[Event]:
    """Return the script of each stream."""
    gap = max(1 / MOST_OF_ONE, streams / MOST_OF_ALL)
    return [Event(gap * number, content="word ") for number in range(1, COUNT + 1)]


def serve(path: str, streams: int) -> None:
    """Run the engine until this process is ended."""

    async def forever() -> None:
        await ScriptedEngine([Stream(events(streams))]).start_unix(path)
        await asyncio.Event().wait()

    asyncio.run(forever())


def main() -> None:
    streams = [int(word) for word in sys.argv[1:]] or [1, 16, 64]
    with tempfile.TemporaryDirectory() as name:
        spec = edge_cases.resolved(
            [edge_cases.DEMO], {"open": False, "limits": {"streams": 128, "requests_per_minute": 100000}}
        )
        edge = RunningEdge(spec, Path(name))
        socket = Path(edge.files.sockets) / "demo" / "api.sock"
        socket.parent.mkdir()
        edge.start()
        ways = (
            Way("socket", socket=str(socket)),
            Way("edge", port=edge.port, tls=ssl.create_default_context(cafile=str(edge.folder / "ca.crt"))),
        )
        print("| streams | way | first event, ms | events/s |\n|---|---|---|---|")
        for number in streams:
            socket.unlink(missing_ok=True)
            engine = multiprocessing.Process(target=serve, args=(str(socket), number), daemon=True)
            engine.start()
            time.sleep(3)  # the edge's check of the new engine
            edge.wait_for("demo", "UP")
            report(ways, number)
            engine.terminate()
        edge.close()


def report(ways: tuple[Way, ...], streams: int) -> None:
    """Measure both ways in turn, and print their medians and the difference."""
    seen: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for _ in range(ROUNDS):
        for way in ways:
            seen[way.name].append(asyncio.run(measure(way, streams)))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in seen.items()}
    for name, (first, rate) in medians.items():
        print(f"| {streams} | {name} | {first:.1f} | {rate:.0f} |")
    (first, rate), (first_edge, rate_edge) = medians["socket"], medians["edge"]
    print(f"| {streams} | added | {first_edge - first:+.1f} | {100 * (rate_edge / rate - 1):+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
