"""Ten thousand hostile requests: nothing reaches an engine, and HAProxy's memory stays where it was."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from conftest import Start
from fakes.running_edge import KEY, RunningEdge
from fakes.scripted_engine import ScriptedEngine
from vllm_spark.verify.gates import edge as gate
from waiting import until

COUNT = 10_000
AT_ONCE = 16
# Requests of one connection, as a scanner sends them.
EACH = 10
CHAT = "/v1/chat/completions"
BODY = b'{"model": "model", "messages": []}'
# vllm-project/vllm#58144 by name, and what else a vLLM has.
PATHS = sorted({path for _, path in gate.UNLISTED} | {"/version", "/load", "/ping", "/v1/load_lora_adapter", "/sleep"})
# Bodies that clients hold open at the same time.
HELD, BODY_BYTES, ROUNDS = 16, 16 << 20, 8
AROUND = (
    "/v1/..{}",
    "/v1/models/..{}",
    "//{}",
    "/%2e%2e{}",
    "{}?/v1/models",
    "{}#/v1/models",
    "/v1/models;{}",
    "{}/",
    "{}%00",
)


def request(line: str, *, key: str = KEY, host: str = "127.0.0.1", more: str = "", body: bytes = b"") -> bytes:
    """Return a request of METHOD PATH."""
    bearer = f"Authorization: Bearer {key}\r\n" if key else ""
    length = f"Content-Length: {len(body)}\r\n" if body and "ength" not in more and "hunked" not in more else ""
    return f"{line} HTTP/1.1\r\nHost: {host}\r\n{bearer}{length}{more}\r\n".encode("latin-1") + body


# A request of the engine that hides in another one. Every outer request is one that no engine may get.
HIDDEN = request("POST /invocations", body=BODY)
SMUGGLED = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "Transfer-Encoding: xchunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Transfer-Encoding:\x0bchunked\r\n",
    "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 5, 6\r\n",
    "Content-Length: 0x5\r\n",
    "X: y\r\n Content-Length: 5\r\n",
    "X: y\rTransfer-Encoding: chunked\r\n",
    "X: y\nTransfer-Encoding: chunked\r\n",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "Connection: authorization\r\n",
)
HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "169.254.169.254",
    "127.0.0.1\r\nHost: evil.example",
    "",
    "[::1]",
    "a" * 300,
)


def chances(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  the same storm every time


def odd_path(chance: random.Random) -> bytes:
    path = chance.choice(["{}", *AROUND]).format(chance.choice(PATHS))
    method = chance.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PRI"])
    return request(f"{method} {path}")


def smuggled(chance: random.Random) -> bytes:
    return request(f"POST {CHAT}", key="", more=chance.choice(SMUGGLED), body=b"0\r\n\r\n" + HIDDEN)


def bad_host(chance: random.Random) -> bytes:
    return request(f"POST {CHAT}", host=chance.choice(HOSTS), body=BODY)


def large_header(chance: random.Random) -> bytes:
    size = chance.choice([17_000, 70_000, 200_000])
    lines = chance.choice([f"X: {'x' * size}\r\n", "".join(f"X-{n}: {'x' * 400}\r\n" for n in range(size // 400))])
    return request("GET /v1/models", more=lines)


def large_body(chance: random.Random) -> bytes:
    return request(f"POST {CHAT}", more=f"Content-Length: {chance.choice([17 << 20, 1 << 40, 10**30])}\r\n", body=b"{")


def wrong_key(chance: random.Random) -> bytes:
    keys = ["", "sk-spark-" + "a" * 43, KEY[:-1], KEY + "a", f"{KEY} {KEY}", "x" * 8000, "\xff" * 20]
    return request(f"POST {CHAT}", key=chance.choice(keys), body=BODY)


def rubbish(chance: random.Random) -> bytes:
    return chance.choice(
        [chance.randbytes(600), b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100, b"GET /v1/models\r\n"]
    )


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    odd_path,
    smuggled,
    bad_host,
    large_header,
    large_body,
    wrong_key,
    rubbish,
)


def statuses(edge: RunningEdge, context: ssl.SSLContext, seed: int) -> Counter[str]:
    """Send a few requests, each on a connection of its own if the edge closes the last one. Returns how they ended."""
    chance, seen = chances(seed), Counter[str]()
    client: socket.socket | None = None
    for _ in range(EACH):
        kind = chance.choice(KINDS)
        try:
            if client is None:
                client = context.wrap_socket(
                    socket.create_connection(("127.0.0.1", edge.port), timeout=20), server_hostname="127.0.0.1"
                )
            client.sendall(kind(chance))
            if kind in (rubbish, smuggled, large_body):
                # The edge may wait for the rest of it.
                client.settimeout(0.2)
            answer = client.recv(65536)
        except OSError as error:
            seen[f"{kind.__name__}: {'waits' if isinstance(error, TimeoutError) else 'cut'}"] += 1
            answer = b""
        else:
            status = re.match(rb"HTTP/1.[01] (\d+)", answer)
            seen[f"{kind.__name__}: {status[1].decode() if status else 'cut'}"] += 1
        if client and (not answer or b"connection: close" in answer.lower() or kind in (rubbish, smuggled, large_body)):
            client.close()
            client = None
    if client:
        client.close()
    return seen


def broken_tls(edge: RunningEdge, seed: int) -> Counter[str]:
    """Begin TLS handshakes that cannot end well."""
    chance = chances(seed)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(32)
    for _ in range(EACH):
        first = chance.choice(
            [
                chance.randbytes(500),
                hello,
                hello + chance.randbytes(400),
                b"GET / HTTP/1.1\r\n\r\n",
                b"\x15\x03\x01\x00\x02\x02\x00",
            ]
        )
        with socket.create_connection(("127.0.0.1", edge.port), timeout=20) as client:
            client.sendall(first)
            client.settimeout(0.05)
            with contextlib.suppress(OSError):
                client.recv(4096)
    return Counter({"broken tls": EACH})


def storm(edge: RunningEdge, context: ssl.SSLContext, count: int, first: int) -> Counter[str]:
    """Send so many hostile requests, and return how they ended."""
    jobs: Iterator[Callable[[], Counter[str]]] = (
        partial(broken_tls, edge, seed) if seed % 10 == 0 else partial(statuses, edge, context, seed)
        for seed in range(first, first + count // EACH)
    )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(lambda job: job(), jobs), Counter[str]())


def test_nothing_reaches_an_engine_and_the_memory_is_flat(start: Start, engine: ScriptedEngine) -> None:
    edge = start(limits={"requests_per_minute": 100_000, "header_timeout_s": 1})
    context = ssl.create_default_context(cafile=str(edge.folder / "ca.crt"))
    edge.show_key()
    engine.heads.clear()
    # HAProxy keeps the buffers that it once had.
    storm(edge, context, 2000, first=COUNT)
    before = edge.memory_kib()
    seen = storm(edge, context, COUNT, first=0)
    after = edge.memory_kib()
    print(f"\n{seen.total()} hostile requests: HAProxy {before / 1024:.1f} MiB before, {after / 1024:.1f} MiB after")
    print("\n".join(f"  {ending} {count}" for ending, count in sorted(seen.items())))
    assert seen.total() == COUNT
    assert {ending.rpartition(": ")[2] for ending in seen} & {"200", "500", "502", "503", "504"} == set()
    assert engine.heads == []
    assert edge.ask("GET", "/v1/models").status == 200
    # A worker that leaks a kilobyte a request would have 10 MiB more.
    assert after < before + 8 * 1024


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_sent(kind: Callable[[random.Random], bytes]) -> None:
    """The storm above can fail: each kind has bytes, and more than one form."""
    assert len({kind(chances(seed)) for seed in range(50)}) > 1


@pytest.mark.parametrize("more", SMUGGLED)
def test_no_request_hides_in_the_body_of_another(start: Start, engine: ScriptedEngine, more: str) -> None:
    """The outer request has a key, so that it may reach the engine. What hides in it is no request of its own there."""
    edge = start(tls="off")
    with socket.create_connection(("127.0.0.1", edge.port), timeout=20) as client:
        client.sendall(request(f"POST {CHAT}", more=more, body=b"0\r\n\r\n" + HIDDEN))
        client.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            client.recv(65536)
    assert len(engine.heads) <= 1
    assert all("invocations" not in head for head in engine.heads)


def hold_bodies(edge: RunningEdge) -> None:
    """Send bodies but for their last bytes until HAProxy has them all, then close the connections."""
    head = request(f"POST {CHAT}", more=f"Content-Length: {BODY_BYTES}\r\n")
    with contextlib.ExitStack() as clients:
        for _ in range(HELD):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", edge.port), timeout=20))
            client.sendall(head + b"x" * (BODY_BYTES - 1000))
        until(lambda: buffers(edge) >= HELD)
    until(lambda: buffers(edge) <= 2)


def buffers(edge: RunningEdge) -> int:
    """Return how many buffers HAProxy uses."""
    found = re.search(r"Pool buffer .* (\d+) used", edge.admin_route("show pools"))
    assert found
    return int(found[1])


def test_memory_of_large_bodies_is_used_again(start: Start) -> None:
    """How much glibc gives back differs from run to run. The next bodies use the rest again."""
    edge = start(tls="off", limits={"streams": HELD, "requests_per_minute": 1000})
    edge.show_key()
    peaks = []
    for _ in range(ROUNDS):
        hold_bodies(edge)
        peaks.append(edge.memory_kib("VmHWM"))
    print("peaks of memory in MiB:", [peak // 1024 for peak in peaks])
    assert peaks[0] > HELD * BODY_BYTES * 0.9 / 1024
    # Buffers that were not used again would be another sixteen each time.
    assert peaks[-1] < peaks[0] + HELD * BODY_BYTES / 2 / 1024
