"""The engine of a deployment, as liveness and vllm-switch of its host see it: requests to its API, and JSON files of
its state. Standard library alone. deploy copies it with unix_http.py to host_layout.MODULES.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from vllm_spark.node.unix_http import UnixConnection

# For one token, with a queue before it: until the connection, and from there to the last byte of an answer.
TIMEOUT_S = 20.0
MAX_REPLY_BYTES = 4 << 20  # a program in a container answers these requests of root
# Statuses that a serving API gives again to the same request (vllm_spark.verify.gates.ready).
DEFINITE = (400, 401, 403, 404, 422)
BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)

Document = dict[str, Any]


class Proof(NamedTuple):
    """The cheapest request that proves that the engine of a role works, beside its model: `mark` is in each answer,
    `word` says what it brings, and `counted` matches the engine's counter of what it has brought."""

    path: str
    body: Document
    mark: str
    word: str
    counted: re.Pattern[str]


# Role of a recipe -> its proof. What an engine embeds or sorts generates nothing: it counts what it has read.
CHAT, EMBED, RERANK = "chat", "embed", "rerank"
_GENERATED = re.compile(r"^vllm:generation_tokens_total\{.*\} (\S+)$", re.MULTILINE)
_READ = re.compile(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", re.MULTILINE)
PROOFS: Mapping[str, Proof] = {
    CHAT: Proof(
        "/v1/completions", {"prompt": "1", "max_tokens": 1, "temperature": 0}, '"choices"', "token", _GENERATED
    ),
    EMBED: Proof("/v1/embeddings", {"input": "1"}, '"embedding"', "vector", _READ),
    RERANK: Proof("/v1/rerank", {"query": "1", "documents": ["1"]}, '"relevance_score"', "score", _READ),
}


class EngineAddress(TypedDict, total=False):
    """liveness.json of a deployment: where its API is, and the deadline of a start in seconds. A closed engine has a
    `socket`, an open one `address` and `port`. Without a `role` it chats."""

    address: str
    port: int
    socket: str
    model: str
    role: str
    deadline_s: float


def read(path: Path) -> Document:
    """Return the object in a JSON file; an absent or broken file is empty."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def request_token(server: EngineAddress, env: Path) -> tuple[int, str]:
    """Request one token, or the vector or score of another role. Returns as `send`. `env` is the env file of the
    deployment, which may have a key."""
    proof = PROOFS[role_of(server)]
    body = json.dumps({"model": server["model"], **proof.body})
    # A closed engine checks no key.
    return send(server, "POST", proof.path, body, "" if "socket" in server else api_key(env))


def is_token(status: int, text: str, role: str = CHAT) -> bool:
    """Return True if this is the answer to a request for a token, or to that of another role."""
    return status == http.client.OK and PROOFS[role].mark in text


def role_of(server: EngineAddress) -> str:
    """Return the role of a server."""
    return server.get("role", CHAT)


def metrics(server: EngineAddress) -> str:
    """Return the counters of the engine as it prints them; empty if it does not answer."""
    status, text = send(server, "GET", "/metrics")
    return text if status == http.client.OK else ""


def requests_in(metrics: str) -> int:
    """Return the number of running and queued requests in the /metrics of an engine."""
    return int(sum(float(value) for value in BUSY.findall(metrics)))


def send(server: EngineAddress, method: str, path: str, body: str | None = None, key: str = "") -> tuple[int, str]:
    """Return (status, text) of a request; status 0 and the error if nothing answers."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection = connect(server)
    try:
        connection.connect()
        with _cut_after(connection.sock, TIMEOUT_S):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(MAX_REPLY_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error) or type(error).__name__
    finally:
        connection.close()


@contextmanager
def _cut_after(connection: socket.socket, seconds: float) -> Iterator[None]:
    """End a connection after this time: the timeout of a socket begins again with each byte of an answer that drips."""

    def cut() -> None:
        with suppress(OSError):  # it is closed already
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def connect(server: EngineAddress) -> http.client.HTTPConnection:
    """Return the connection to an engine, which its first request opens."""
    if "socket" in server:
        return UnixConnection(server["socket"], TIMEOUT_S)
    return http.client.HTTPConnection(server["address"], server["port"], timeout=TIMEOUT_S)


def api_key(env: Path) -> str:
    """Return VLLM_API_KEY of an env file; empty if the file or the variable does not exist."""
    for line in env.read_text(encoding="utf-8").splitlines() if env.exists() else []:
        if line.startswith("VLLM_API_KEY="):
            return line.partition("=")[2]
    return ""
