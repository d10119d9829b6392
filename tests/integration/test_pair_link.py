"""The link of a pair against a process without the deployment's key: real supervisors and sockets on 127.0.0.0/8.

The head is 127.0.0.1 and the worker 127.0.0.2. An attacker has the address of either, as any process of that Spark has,
or stands between them with an address of its own.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import loopback
from fakes.rank_process import IMAGE, LAUNCH, TOOLKIT, RankProcess
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.turn import Turn
from waiting import until

KEY, OTHER_KEY = "5a" * 32, "a5" * 32
HEAD, WORKER, BETWEEN = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# What a head answered to anyone before the handshake existed, and what a worker had to say to it.
HELLO = {"launch": LAUNCH, "image": "sha256:deadbeef", "toolkit": TOOLKIT}
FORGED = "\x1b[31mvllm-spark: FORGED LINE of the journal\x1b[0m"
# What must not happen is looked for after this time, which is longer than a supervisor needs to act on a message.
REACTION_S = 1.5


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    """The address of an API that serves."""
    server = ThreadingHTTPServer((HEAD, 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"{HEAD}:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def port() -> int:
    return loopback.held_port()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[tuple[RankProcess, RankProcess]]:
    """The head and the worker, with the same key, not started."""
    (tmp_path / "head").mkdir()
    (tmp_path / "worker").mkdir()
    pair = RankProcess(tmp_path / "head", KEY), RankProcess(tmp_path / "worker", KEY)
    yield pair
    for rank in pair:
        rank.end()


def serving(ranks: tuple[RankProcess, RankProcess], port: int, api: str, head_of_worker: str = HEAD) -> None:
    """Start both ranks and wait until they serve. The head expects the worker at the address that the worker uses for
    it, unless something stands between them."""
    head, worker = ranks
    head.start(0, HEAD, WORKER if head_of_worker == HEAD else head_of_worker, port, api)
    until(lambda: head.state["state"] == "wanted")
    worker.start(1, WORKER, head_of_worker, port)
    until(lambda: head.state["state"] == worker.state["state"] == "serving")


def test_a_pair_loads_when_it_has_the_turns_of_both_sparks(
    ranks: tuple[RankProcess, RankProcess], port: int, api: str
) -> None:
    """The worker is `other`, whose turn the head takes first. A neighbour loads on the head's Spark, then serves."""
    head, worker = ranks
    head.in_turn, worker.in_turn = "spark1", "other"
    neighbour, later = (Turn("chat", Places(run=str(one.folder / "run"))) for one in ranks)
    assert not neighbour.take()
    head.start(0, HEAD, WORKER, port, api)
    worker.start(1, WORKER, HEAD, port)
    until(lambda: head.state.get("why") == "it waits for its turn to load: chat loads on this Spark")
    # The pair has the turn of the worker meanwhile, and no container.
    assert later.take() == "demo"
    assert [one.container_env for one in ranks] == ["", ""]
    neighbour.give()
    until(lambda: head.state["state"] == worker.state["state"] == "serving")
    # It has given both back.
    until(lambda: not later.take() and not neighbour.take())


def said_to_head(port: int, *lines: bytes, source: str = WORKER) -> bytes:
    """Connect to the head, send lines, and return everything that it sends within a second."""
    with socket.create_connection((HEAD, port), 60, source_address=(source, 0)) as connection:
        return exchanged(connection, *lines)


def exchanged(connection: socket.socket, *lines: bytes) -> bytes:
    connection.settimeout(1)
    received = b""
    with contextlib.suppress(OSError):
        for line in lines:
            connection.sendall(line + b"\n")
        while chunk := connection.recv(65536):
            received += chunk
    return received


@contextlib.contextmanager
def false_head(port: int, *lines: bytes) -> Iterator[list[bytes]]:
    """Listen at the address of the head, which any process of it can do first, and send lines to every worker."""
    received: list[bytes] = []
    server = socket.create_server((HEAD, port))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    received.append(exchanged(connection, *lines))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def line(message: object) -> bytes:
    return json.dumps(message).encode()


PROOF = b"vllm-spark-link 1 " + b"0" * 64 + b" " + b"0" * 64


@pytest.mark.parametrize("lines", [(line(HELLO),), (line({}), line(HELLO)), (PROOF, line(HELLO))])
def test_a_head_tells_nothing_to_a_side_without_the_key(
    ranks: tuple[RankProcess, RankProcess], port: int, lines: tuple[bytes, ...]
) -> None:
    head, _ = ranks
    head.start(0, HEAD, WORKER, port)
    until(lambda: head.state["state"] == "wanted")
    answer = said_to_head(port, *lines)
    assert not any(text.encode() in answer for text in (f'"{LAUNCH}"', IMAGE, "deadbeef", TOOLKIT, "start", "token"))
    assert (head.status, head.container_env) == (None, "")
    assert head.state["state"] == "wanted"


def test_a_connection_without_the_key_does_not_end_a_running_pair(
    ranks: tuple[RankProcess, RankProcess], port: int, api: str
) -> None:
    serving(ranks, port, api)
    for lines in ((line(HELLO), line({"bye": "x", "kind": "gave_up"})), (PROOF, line(HELLO)), (b"",)):
        said_to_head(port, *lines)
    until(lambda: "the pair is not affected" in ranks[0].journal)
    time.sleep(REACTION_S)
    assert [rank.status for rank in ranks] == [None, None]
    assert [rank.state["state"] for rank in ranks] == ["serving", "serving"]


def test_many_idle_connections_do_not_keep_the_worker_out(
    ranks: tuple[RankProcess, RankProcess], port: int, api: str
) -> None:
    head, worker = ranks
    head.start(0, HEAD, WORKER, port, api)
    until(lambda: head.state["state"] == "wanted")
    with contextlib.ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection((HEAD, port), 60, source_address=(WORKER, 0)))
        worker.start(1, WORKER, HEAD, port)
        until(lambda: head.state["state"] == worker.state["state"] == "serving")


def test_nothing_of_a_side_without_the_key_reaches_the_journal(
    ranks: tuple[RankProcess, RankProcess], port: int
) -> None:
    head, _ = ranks
    head.start(0, HEAD, WORKER, port)
    until(lambda: head.state["state"] == "wanted")
    for launch in ("x", f"x\n{FORGED}", "x" * 40_000):
        said_to_head(port, json.dumps({**HELLO, "launch": launch}, ensure_ascii=False).encode())
    # The line of the journal is before the reason in the state.
    until(lambda: "is not proved" in head.state["why"])
    assert "FORGED" not in head.journal
    assert "\x1b" not in head.journal
    assert head.state["state"] == "wanted"
    assert len(head.state["why"]) < 500
    # Three refused connections are one line, so that they do not fill the journal.
    assert head.journal.count("waiting for other: ") == 1
    assert "Fix: deploy with both hosts in -l. See docs/runbooks/pair-key.md" in head.journal


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((b"[" * 60_000,), id="deep"),
        pytest.param((b"x" * 1_000_000,), id="long"),
        pytest.param((line({"gave_up": "it says so"}),), id="gives-up"),
        pytest.param((line(HELLO), line({"start": "t0ken\nLD_PRELOAD=/cache/evil.so"})), id="environment"),
        pytest.param((b"vllm-spark-link 1 " + b"0" * 64, PROOF[:82], line({"start": 1})), id="proof"),
    ],
)
def test_a_worker_survives_a_head_without_the_key(
    ranks: tuple[RankProcess, RankProcess], port: int, lines: tuple[bytes, ...]
) -> None:
    _, worker = ranks
    with false_head(port, *lines) as received:
        worker.start(1, WORKER, HEAD, port)
        until(lambda: received or worker.status is not None)
        time.sleep(REACTION_S)
    assert worker.status is None
    assert worker.container_env == ""
    assert worker.state["state"] == "wanted"
    assert not any(text.encode() in b"".join(received) for text in (f'"{LAUNCH}"', IMAGE, TOOLKIT, KEY))
    assert "Traceback" not in worker.journal


class Relay:
    """A side between the two, which forwards everything and keeps what the worker has sent. `change` replaces bytes."""

    def __init__(self, port: int) -> None:
        self.port, self.change = port, (b"", b"")
        self.from_worker = self.from_head = b""
        self._server = socket.create_server((BETWEEN, port))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self._server.accept()
                head = socket.create_connection((HEAD, self.port), 60, source_address=(BETWEEN, 0))
                head.settimeout(None)
                for source, target, kept in ((worker, head, "from_worker"), (head, worker, "from_head")):
                    threading.Thread(target=self._forward, args=(source, target, kept), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, kept: str) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                setattr(self, kept, getattr(self, kept) + chunk)
                target.sendall(chunk.replace(*self.change) if self.change[0] else chunk)
        # A close alone would not reach the other thread, which waits for bytes of the same socket.
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        loopback.close_listener(self._server, self._thread)


@pytest.fixture
def relay(port: int) -> Iterator[Relay]:
    between = Relay(port)
    yield between
    between.close()


def test_the_token_of_ray_is_the_same_on_both_and_is_never_sent(
    ranks: tuple[RankProcess, RankProcess], port: int, api: str, relay: Relay
) -> None:
    serving(ranks, port, api, BETWEEN)
    # A supervisor serves as soon as it has started the process of its container, which copies its env file after that.
    until(lambda: all(rank.container_env for rank in ranks))
    head_env, worker_env = (rank.container_env for rank in ranks)
    assert head_env == worker_env
    name, _, token = head_env.strip().partition("=")
    assert name == "RAY_AUTH_TOKEN"
    assert len(bytes.fromhex(token)) == 32
    seen = relay.from_worker + relay.from_head
    assert b'{"start": 1}' in seen
    assert token.encode() not in seen
    assert KEY.encode() not in seen


def test_a_recorded_worker_does_not_end_a_running_pair(
    ranks: tuple[RankProcess, RankProcess], port: int, api: str, relay: Relay
) -> None:
    serving(ranks, port, api, BETWEEN)
    recorded = relay.from_worker.split(b"\n")
    assert len(recorded) > 2
    said_to_head(port, *recorded, source=BETWEEN)
    time.sleep(REACTION_S)
    assert [rank.status for rank in ranks] == [None, None]
    assert ranks[0].state["state"] == "serving"


def test_a_changed_line_ends_the_connection(
    ranks: tuple[RankProcess, RankProcess], port: int, api: str, relay: Relay
) -> None:
    serving(ranks, port, api, BETWEEN)
    relay.change = (b'{"beat": 1}', b'{"start": 1}')
    until(lambda: all(rank.status is not None for rank in ranks))
    assert [rank.status for rank in ranks] == [0, 0]
    assert "not authentic" in ranks[0].journal + ranks[1].journal


def test_two_keys_do_not_make_a_pair(ranks: tuple[RankProcess, RankProcess], port: int) -> None:
    head, worker = ranks
    worker.key_file.write_text(f"{OTHER_KEY}\n")
    head.start(0, HEAD, WORKER, port)
    until(lambda: head.state["state"] == "wanted")
    worker.start(1, WORKER, HEAD, port)
    until(lambda: "it does not have this key" in head.journal and "Fix: deploy" in worker.journal)
    # The line of the journal is before the reason in the state.
    until(lambda: "the key of deployment demo is not proved" in head.state["why"])
    assert (head.container_env, worker.container_env) == ("", "")


def test_a_rank_without_a_key_waits_for_a_deploy(ranks: tuple[RankProcess, RankProcess], port: int, api: str) -> None:
    head, worker = ranks
    head.key_file.unlink()
    head.start(0, HEAD, WORKER, port, api)
    until(lambda: "has no key" in head.state.get("why", ""))
    assert "link.key cannot be read — expected: the key that deploy installs on both. Fix: deploy" in head.journal
    head.key_file.write_text(f"{KEY}\n")
    worker.start(1, WORKER, HEAD, port)
    until(lambda: head.state["state"] == worker.state["state"] == "serving")
