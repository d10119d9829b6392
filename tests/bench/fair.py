"""Measure what a batch job does to the first token of an interactive client: alone, beside a job whose key has no
class, and beside one with a key of the class `batch` and its share of the engine. One run, one engine.

    python tests/bench/fair.py
    python tests/bench/fair.py --engine SOCKET --model NAME --sequences N
    python tests/bench/fair.py --url URL --model NAME --key KEY --plain-key KEY2 --batch-key KEY3 [--ca FILE]

The first one measures a stand-in for an engine (tests/fakes/queueing_engine.py), which queues as vLLM does. The times
of its steps are made up: its figures say what the edge does, and not what a Spark does. `--engine` puts an edge of this
machine before an engine that listens on a unix socket and has `--scheduling-policy priority`. `--url` is any edge with
`vllm_edge.fair` and limits that let one key have as many requests:
`{streams: 256, batch_waiting: 256, body_mib: 3, connections: 2048, requests_per_minute: 100000}`. `--quarter` is a
command that gives batch a quarter of the sequences there, for the last measurement.

The interactive client asks one question after another, each with another prompt. The clock starts when its connection
is open, and stops at the first event of the answer. The job has `--jobs` requests at any time; one that gets a 429
comes back after Retry-After, at most two seconds. `alone` is measured first and last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shlex
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "collections")]

from fakes import edge_cases  # noqa: E402
from fakes.queueing_engine import QueueingEngine  # noqa: E402
from fakes.running_edge import RunningEdge  # noqa: E402
from vllm_spark.inventory.edge import EdgeLimits  # noqa: E402

LIMITS = {"streams": 256, "batch_waiting": 256, "body_mib": 3, "connections": 2048, "requests_per_minute": 100_000}
KEYS = {"anna": "sk-of-anna", "job": "sk-of-job", "ci": "sk-of-ci"}
QUARTER = 25
MOST_RETRY_S = 2.0
# Most tokenizers have a token for each.
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
ALONE, PLAIN = "alone", "beside a job without a class"


@dataclass(frozen=True, slots=True)
class Door:
    """An edge, and the keys of the interactive client, of a job without a class, and of one of the class batch."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    model: str
    key: str
    plain_key: str
    batch_key: str

    async def ask(self, key: str, words: int, tokens: int) -> Answer:
        """Send a request and return its answer when it has ended."""
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        try:
            writer.write(self._request(key, words, tokens))
            began = time.perf_counter()
            status = int((await reader.readline()).split()[1])
            headers = dict([line.partition(":")[::2] async for line in _head(reader)])
            if status != 200:
                return Answer(status, float(headers.get("retry-after", 0)))
            first = 0.0
            while not (line := await reader.readline()).startswith(b"data: [DONE]"):
                if not line:
                    return Answer(0)
                first = first or (line.startswith(b"data: {") and time.perf_counter() - began) or 0.0
            return Answer(status, first_s=first)
        finally:
            writer.close()

    def _request(self, key: str, words: int, tokens: int) -> bytes:
        prompt = " ".join(random.choices(WORDS, k=words))  # noqa: S311
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
        content = json.dumps({**body, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
        lines = (
            "POST /v1/chat/completions HTTP/1.1",
            f"Host: {self.host}",
            f"Authorization: Bearer {key}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        )
        return "\r\n".join([*lines, "", ""]).encode() + content


@dataclass(frozen=True, slots=True)
class Answer:
    """The status, 0 for a stream that was cut; seconds until a client may come back, and to the first event."""

    status: int
    retry_s: float = 0.0
    first_s: float = 0.0


@dataclass(slots=True)
class Phase:
    """A measurement: seconds to the first token of each question, and the answers of the job meanwhile by status."""

    name: str
    firsts: list[float] = field(default_factory=list)
    job: Counter[int] = field(default_factory=Counter)


async def _head(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    while line := (await reader.readline()).decode().strip():
        yield line.lower()


@asynccontextmanager
async def job(door: Door, key: str, phase: Phase, args: argparse.Namespace) -> AsyncIterator[None]:
    """Keep as many requests of a batch job at the edge, from some seconds before the measurement on."""

    async def ask_on() -> None:
        while True:
            answer = await door.ask(key, args.job_words, args.job_tokens)
            phase.job[answer.status] += 1
            await asyncio.sleep(min(answer.retry_s, MOST_RETRY_S))

    workers = [asyncio.create_task(ask_on()) for _ in range(args.jobs if key else 0)]
    try:
        await asyncio.sleep(args.settle_s if key else 0)
        phase.job.clear()
        yield
        for worker in workers:
            if worker.done():
                worker.result()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def measure(door: Door, name: str, key: str, args: argparse.Namespace) -> Phase:
    """Return the measurement of the interactive client beside a job with a key; an empty one is no job."""
    phase = Phase(name)
    async with job(door, key, phase, args):
        end = time.monotonic() + args.seconds
        while len(phase.firsts) < args.questions and (time.monotonic() < end or len(phase.firsts) < args.fewest):
            answer = await door.ask(door.key, args.words, args.tokens)
            if answer.status != 200:
                raise SystemExit(f"{name}: the interactive client got the status {answer.status}")
            phase.firsts.append(answer.first_s)
            await asyncio.sleep(random.random() * 0.2)  # noqa: S311  no pace that a step of the engine could share
    # The engine drops what it still has of the job.
    await asyncio.sleep(args.settle_s if key else 0)
    return phase


def report(phase: Phase, alone: float) -> None:
    """Print the row of a measurement. `alone` is the median without a job."""
    first = statistics.median(phase.firsts)
    low, _, high = statistics.quantiles(phase.firsts, n=4) if len(phase.firsts) > 1 else (first,) * 3
    answers = ", ".join(f"{count} with {status}" for status, count in sorted(phase.job.items())) or "-"
    cells = (
        phase.name,
        f"{1000 * first:.0f}",
        f"{1000 * low:.0f} to {1000 * high:.0f}",
        f"{1000 * max(phase.firsts):.0f}",
    )
    print(f"| {' | '.join(cells)} | {len(phase.firsts)} | {first / alone:.2f} | {answers} |", flush=True)


def run(doors: Mapping[str, Door], plain: Door, args: argparse.Namespace) -> None:
    """Measure and print. `doors`: the name of a share -> the edge that has it, when it is its turn."""
    print(f"a job of {args.jobs} requests, each with {args.job_words} words and an answer of {args.job_tokens} tokens;")
    print(f"questions of {args.words} words with answers of {args.tokens} tokens;", end=" ")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| interactive client | first token, ms | quartiles | slowest | questions | of alone | answers of the job |")
    print("|---|---|---|---|---|---|---|")
    asyncio.run(measure(plain, "warm", "", argparse.Namespace(**{**vars(args), "questions": 3})))
    before = asyncio.run(measure(plain, ALONE, "", args))
    alone = statistics.median(before.firsts)
    report(before, alone)
    report(asyncio.run(measure(plain, PLAIN, plain.plain_key, args)), alone)
    for name, door in doors.items():
        if args.quarter and name == list(doors)[-1]:
            subprocess.run(shlex.split(args.quarter), check=True)
        report(asyncio.run(measure(door, f"beside batch, {name}", door.batch_key, args)), alone)
    report(asyncio.run(measure(plain, f"{ALONE} again", "", args)), alone)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


def serve(path: str, sequences: int) -> None:
    """Run the stand-in until this process is ended."""

    async def forever() -> None:
        await QueueingEngine(sequences).start_unix(path)
        await asyncio.Event().wait()

    asyncio.run(forever())


@contextmanager
def stand_in(sequences: int) -> Iterator[str]:
    """Run the stand-in and yield its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/api.sock"
        engine = multiprocessing.Process(target=serve, args=(path, sequences), daemon=True)
        engine.start()
        try:
            yield path
        finally:
            engine.terminate()
            engine.join()


@contextmanager
def own_edge(engine: str, share: int, args: argparse.Namespace) -> Iterator[Door]:
    """Run an edge of this machine before an engine's socket, and yield it."""
    settings = {"open": False, "fair": True, "limits": {**LIMITS, "batch_share": share}}
    planned = edge_cases.edge_of([edge_cases.DEMO], settings)
    (backend,) = planned.backends
    planned = replace(planned, backends=(replace(backend, models=(args.model,), sequences=args.sequences),))
    entries = {"anna": "anna", "job": "job", "ci": "ci//batch"}
    keys = {hashlib.sha256(KEYS[name].encode()).hexdigest(): entry for name, entry in entries.items()}
    with tempfile.TemporaryDirectory() as folder:
        edge = RunningEdge(planned, Path(folder), keys=keys)
        path = Path(edge.files.sockets) / "demo" / "api.sock"
        path.parent.mkdir()
        path.symlink_to(engine)
        threading.Thread(target=_read_log, args=(edge,), daemon=True).start()
        edge.start()
        edge.wait_for("demo", "UP")
        # From now on this address may hold more connections than a stranger's.
        edge.ask("GET", "/v1/models", key=KEYS["anna"])
        trust = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        try:
            yield Door("localhost", edge.port, trust, args.model, *KEYS.values())
        finally:
            edge.close()


def _read_log(edge: RunningEdge) -> None:
    """Take the lines of the log, as journald does."""
    with contextlib.suppress(OSError):
        while True:
            edge.log.recv(65536)


def other_edge(args: argparse.Namespace) -> Door:
    """Return the edge of a URL."""
    url = urlsplit(args.url)
    tls = ssl.create_default_context(cafile=args.ca) if url.scheme == "https" else None
    port = url.port or (443 if tls else 80)
    return Door(url.hostname or "", port, tls, args.model, args.key, args.plain_key, args.batch_key)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", help="the unix socket of an engine; without it and --url there is a stand-in")
    parser.add_argument("--model", default="model", help="the name of its model")
    parser.add_argument("--sequences", type=int, default=16, help="its max-num-seqs")
    parser.add_argument("--url", help="an edge, as https://spark1:8000")
    for name in ("key", "plain-key", "batch-key"):
        parser.add_argument(f"--{name}", default="", help="with --url")
    parser.add_argument("--ca", help="with --url: the file of its authority")
    parser.add_argument(
        "--quarter", default="", help="with --url: a command that gives batch a quarter of the sequences"
    )
    shares = (EdgeLimits().batch_share, QUARTER)
    parser.add_argument("--shares", type=int, nargs="+", default=shares, help="percent for batch, without --url")
    parser.add_argument("--jobs", type=int, default=200, help="requests of the batch job at any time")
    parser.add_argument("--job-words", type=int, default=200, help="of the prompt of each")
    parser.add_argument("--job-tokens", type=int, default=128, help="of the answer of each")
    parser.add_argument("--words", type=int, default=500, help="of a question's prompt")
    parser.add_argument("--tokens", type=int, default=16, help="of its answer")
    parser.add_argument("--questions", type=int, default=40, help="the most of a measurement")
    parser.add_argument("--fewest", type=int, default=3, help="the fewest of a measurement, however long they take")
    parser.add_argument("--seconds", type=float, default=60, help="of a measurement")
    parser.add_argument("--settle-s", type=float, default=5, help="from the job's first request to the first question")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.url:
        door = other_edge(args)
        run({"its share": door, **({"a quarter": door} if args.quarter else {})}, door, args)
        return
    with contextlib.ExitStack() as stack:
        engine = args.engine or stack.enter_context(stand_in(args.sequences))
        print("a real engine" if args.engine else "a stand-in for an engine", f"with {args.sequences} sequences")
        doors = {
            f"{share} % of the sequences": stack.enter_context(own_edge(engine, share, args)) for share in args.shares
        }
        run(doors, next(iter(doors.values())), args)


if __name__ == "__main__":
    main()
