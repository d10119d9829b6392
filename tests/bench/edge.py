"""Measure what the edge adds to a stream: first event, events per second, CPU time. Three ways in one run: the engine's
socket, the first stage alone in front of it, and both stages.

    python tests/bench/edge.py [STREAMS]

A scripted engine on a unix socket, a real HAProxy with the unit's environment, and the client share this machine. The
streams of a measurement begin `in turn`, within a second, or all `at once`. A `kept` connection is open when the clock
starts, and through the edge it has had a request: the pools of openai-python and LiteLLM keep theirs. A `new` one is
opened after that moment, through the edge with its TLS handshake. The ways alternate, so that they have the same
neighbours, and each round compares what it has measured itself. What both stages add to the first one is the cost of
the second one: its connection, and the reading of the body for the route. CPU time is that of streams at once, until
the last one has its first event.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "collections")]

from fakes import edge_cases  # noqa: E402
from fakes.running_edge import KEY, RunningEdge  # noqa: E402
from fakes.scripted_engine import Event, ScriptedEngine, Stream  # noqa: E402
from vllm_spark.inventory.host_edge import Edge  # noqa: E402

# Rounds and events of a stream: the time to the first event needs many rounds, the rate many events.
LATENCY_ROUNDS, LATENCY_EVENTS = 21, 2
RATE_ROUNDS, RATE_EVENTS = 5, 100
# The most tokens per second of a Spark, all streams together, and of one stream.
MOST_OF_ALL, MOST_OF_ONE = 1000, 50
SETTLE_S = 0.1
# Streams in turn all begin within this time.
TURNS_S = 1.0
BODY = json.dumps({"model": "model", "messages": [{"role": "user", "content": "x" * 4000}], "stream": True}).encode()
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
REQUEST = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
PROBE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

CPU = ("haproxy", "engine", "client")
HEADER = """\
| streams, connections | way | first event, ms | last stream, ms | events/s | HAProxy, CPU ms each | engine | client |
|---|---|---|---|---|---|---|---|"""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the engine: its socket, or an edge with a TLS context and the process ids of HAProxy's workers."""

    name: str
    socket: str = ""
    port: int = 0
    tls: ssl.SSLContext | None = None
    workers: tuple[int, ...] = ()

    async def open(self) -> Connection:
        if self.socket:
            return await asyncio.open_unix_connection(self.socket)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)

    async def keep(self) -> Connection:
        """Return a connection that is no longer new. The engine closes its own after each request: there it is open."""
        reader, writer = await self.open()
        if self.workers:
            writer.write(PROBE)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        return reader, writer


@dataclass(frozen=True, slots=True)
class Case:
    """What a measurement does: so many streams that begin within `turns_s`."""

    streams: int
    kept: bool = True
    turns_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.streams} {'in turn' if self.turns_s else 'at once'}, {'kept' if self.kept else 'new'}"


@dataclass(frozen=True, slots=True)
class Result:
    """A measurement: milliseconds to the first event (median of the streams, and the last stream), events per second
    of all streams together, and milliseconds of CPU time per request by process."""

    first: float
    last: float
    rate: float
    haproxy: float
    engine: float
    client: float


# Way -> its measurement of one round.
Round = dict[str, Result]


class FirstStage(RunningEdge):
    """An edge whose first stage asks the engine itself."""

    def configure(self) -> None:
        super().configure()
        engine = f"{self.files.sockets}/demo/api.sock"
        Path(self.files.config).write_text(self.text.replace(f"{self.files.route_sockets}/api.sock", engine))


SOCKET = "socket"
EDGES: Mapping[str, Callable[[Edge, Path], RunningEdge]] = {"first stage": FirstStage, "both stages": RunningEdge}


def cpu_s(processes: Iterable[int]) -> float:
    """Return the CPU time of all threads of processes, in seconds: the clock of clock_getcpuclockid(3)."""
    return sum(time.clock_gettime((~process << 3) | 2) for process in processes)


async def measure(way: Way, engine: int, case: Case) -> Result:
    """Return what the streams of a case have measured. `engine` is its process id."""
    connections = [await way.keep() if case.kept else None for _ in range(case.streams)]
    await asyncio.sleep(SETTLE_S)  # the engine accepts, and nobody still closes the connections of the last round
    processes = (way.workers, (engine,), (os.getpid(),))
    firsts, after = list[float](), list[float]()

    async def stream(number: int, connection: Connection | None) -> float:
        """Return the events per second of one request."""
        await asyncio.sleep(case.turns_s * number / case.streams)
        began = time.perf_counter()
        reader, writer = connection or await way.open()
        writer.write(REQUEST)
        count = 0
        while not (line := await reader.readline()).startswith(b"data: [DONE]"):
            assert line, "the stream was cut"
            if line.startswith(b"data: {"):
                count += 1
                if count == 1:
                    firsts.append(1000 * (time.perf_counter() - began))
                    if len(firsts) == case.streams:
                        after.extend(cpu_s(one) for one in processes)
        writer.close()
        return count / (time.perf_counter() - began)

    with collector_off():
        before = [cpu_s(one) for one in processes]
        rates = await asyncio.gather(*(stream(*one) for one in enumerate(connections)))
    spent = (1000 * (end - start) / case.streams for start, end in zip(before, after, strict=True))
    return Result(statistics.median(firsts), max(firsts), sum(rates), *spent)


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep Python's collector of garbage out of the measured time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def gap_s(streams: int) -> float:
    """Return the time between two events of a stream, and before its first one."""
    return max(1 / MOST_OF_ONE, streams / MOST_OF_ALL)


def serve(path: str, streams: int, events: int) -> None:
    """Run the engine until this process is ended."""
    script = [Event(gap_s(streams) * number, content="word ") for number in range(1, events + 1)]

    async def forever() -> None:
        await ScriptedEngine([Stream(script)]).start_unix(path)
        await asyncio.Event().wait()

    asyncio.run(forever())


def read_log(log: socket.socket) -> None:
    """Take the lines of the log, as journald does. HAProxy drops them, and saves their cost, when nobody does."""
    log.settimeout(None)
    while True:
        log.recv(65536)


@contextmanager
def running_engine(edges: Sequence[RunningEdge], path: Path, streams: int, events: int) -> Iterator[int]:
    """Run an engine, and yield its process id when the edges know it."""
    path.unlink(missing_ok=True)
    for edge in edges:
        edge.wait_for("demo", "DOWN")
    engine = multiprocessing.Process(target=serve, args=(str(path), streams, events), daemon=True)
    engine.start()
    assert engine.pid
    try:
        for edge in edges:
            edge.wait_for("demo", "UP")
        yield engine.pid
    finally:
        engine.terminate()
        engine.join()


def rounds(ways: Sequence[Way], engine: int, case: Case, count: int) -> list[Round]:
    """Measure all ways in turn. The first round warms up and does not count."""
    return [{way.name: asyncio.run(measure(way, engine, case)) for way in ways} for _ in range(count + 1)][1:]


def way_of(name: str, edge: RunningEdge, engine: Path) -> Way:
    """Start an edge in front of a link to the engine's socket, and return the way through it."""
    path = Path(edge.files.sockets) / "demo" / "api.sock"
    path.parent.mkdir()
    path.symlink_to(engine)
    edge.start()
    edge.show_key()
    multiprocessing.Process(target=read_log, args=(edge.log,), daemon=True).start()
    trust = ssl.create_default_context(cafile=str(edge.folder / "ca.crt"))
    return Way(name, port=edge.port, tls=trust, workers=tuple(map(int, edge.worker().split())))


def main(kinds: Mapping[str, Callable[[Edge, Path], RunningEdge]] = EDGES) -> None:
    """Measure the socket and edges, name -> how to make one."""
    streams = [int(word) for word in sys.argv[1:]] or [1, 16, 64]
    with tempfile.TemporaryDirectory() as folder:
        limits = {"streams": 100, "requests_per_minute": 100000}
        planned = edge_cases.edge_of([edge_cases.DEMO], {"open": False, "limits": limits})
        path = Path(folder) / "api.sock"
        edges = {}
        for name, kind in kinds.items():
            own = Path(folder) / name.replace(" ", "-")
            own.mkdir()
            edges[name] = kind(planned, own)
        ways = [Way(SOCKET, socket=str(path)), *(way_of(name, edge, path) for name, edge in edges.items())]
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
        print(HEADER)
        for number in streams:
            with running_engine([*edges.values()], path, number, RATE_EVENTS) as engine:
                case = Case(number, turns_s=TURNS_S)
                report(case, rounds(ways, engine, case, RATE_ROUNDS))
            with running_engine([*edges.values()], path, number, LATENCY_EVENTS) as engine:
                for case in (Case(number), Case(number, kept=False)):
                    report_cpu(case, rounds(ways, engine, case, LATENCY_ROUNDS))
        print(f"\nload {os.getloadavg()[0]:.1f} at the end")
        for edge in edges.values():
            edge.close()


def report(case: Case, found: list[Round]) -> None:
    """Print the medians of all ways, and the medians of their differences with the quartiles."""
    for way in found[0]:
        first, last, rate = (median(found, way, name) for name in ("first", "last", "rate"))
        print(f"| {case} | {way} | {first:.2f} | {last:.2f} | {rate:.0f} | | | |")
    for fewer, more in pairwise(found[0]):
        rate_added = spread([100 * (one[more].rate / one[fewer].rate - 1) for one in found], " %")
        times = " | ".join(added(found, fewer, more, name) for name in ("first", "last"))
        print(f"| {case} | {more} - {fewer} | {times} | {rate_added} | | | |", flush=True)


def report_cpu(case: Case, found: list[Round]) -> None:
    """Print the same with the CPU time instead of the rate, and how long the cores of this machine take for the added
    CPU time of all streams if they share it: the last stream waits that long, the median stream half of it."""
    for way in found[0]:
        first, last, *cpu = (median(found, way, name) for name in ("first", "last", *CPU))
        print(f"| {case} | {way} | {first:.2f} | {last:.2f} | | {' | '.join(f'{one:.3f}' for one in cpu)} |")
    for fewer, more in pairwise(found[0]):
        cpu_added = [
            statistics.median(getattr(one[more], name) - getattr(one[fewer], name) for one in found) for name in CPU
        ]
        times = " | ".join(added(found, fewer, more, name) for name in ("first", "last"))
        print(f"| {case} | {more} - {fewer} | {times} | | {' | '.join(f'{one:+.3f}' for one in cpu_added)} |")
        share = sum(cpu_added) * case.streams / (os.cpu_count() or 1)
        print(f"| {case} | CPU time alone | {share / 2:+.1f} | {share:+.1f} | | | | |", flush=True)


def median(found: list[Round], way: str, name: str) -> float:
    """Return the median of a field of one way."""
    return statistics.median(getattr(one[way], name) for one in found)


def added(found: list[Round], fewer: str, more: str, name: str) -> str:
    return spread([getattr(one[more], name) - getattr(one[fewer], name) for one in found])


def spread(values: list[float], unit: str = "") -> str:
    """Return the median with its quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:+.2f}{unit} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    main()
