"""HTTP between two hosts of a pull: proof that each has the secret of the run, and ranges of files. Runs on the host.

Neither side sends the secret. GET /hello with a nonce of the client returns a nonce of the server and their HMAC, which
proves the server. Every other request carries an HMAC of both nonces, its path and its range, which proves the client.
"""

from __future__ import annotations

import hmac
import http.client
import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from vllm_spark.node.pull.job import JobError

HELLO = "/hello"
NONCE = re.compile(r"[0-9a-f]{32}")
LOGIN = re.compile(r"Spark ([0-9a-f]{32}) ([0-9a-f]{64})")
MAX_HELLO_BYTES = 1000
HELLO_TIMEOUT_S = 10.0
# Connections that have not proven anything. A further one closes the oldest, so they take a bounded number of threads.
MAX_UNPROVEN = 32
UNPROVEN_TIMEOUT_S = 10.0
# A client that is gone must not keep a thread forever.
CLIENT_TIMEOUT_S = 120.0
RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?")
POLL_INTERVAL_S = 0.2
# Sent between two notes that the client still reads.
SEND_BYTES = 64 << 20


def hmac_of(secret: str, *parts: str) -> str:
    return hmac.new(secret.encode(), "\n".join(parts).encode(), "sha256").hexdigest()


@dataclass(slots=True)
class PeerLogin:
    """The client's side: proves the server once, and itself with each request."""

    address: tuple[str, int]
    secret: str
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    server_nonce: str = ""
    lock: Lock = field(default_factory=Lock)

    def headers(self, path: str, byte_range: str = "") -> dict[str, str]:
        """Return the headers of a GET.

        Raises OSError or HTTPException if the server does not answer, and JobError if it does not prove itself.
        """
        with self.lock:
            if not self.server_nonce:
                self.server_nonce = self._hello()
        proof = hmac_of(self.secret, "client", self.server_nonce, self.nonce, "GET", path, byte_range)
        login = {"Authorization": f"Spark {self.nonce} {proof}"}
        return login | ({"Range": byte_range} if byte_range else {})

    def _hello(self) -> str:
        connection = http.client.HTTPConnection(*self.address, timeout=HELLO_TIMEOUT_S)
        try:
            connection.request("GET", HELLO, headers={"Nonce": self.nonce})
            response = connection.getresponse()
            status, body = response.status, response.read(MAX_HELLO_BYTES)
        finally:
            connection.close()
        with suppress(ValueError, RecursionError, TypeError, KeyError):
            reply = json.loads(body)
            nonce, proof = str(reply["nonce"]), str(reply["proof"])
            expected = hmac_of(self.secret, "server", nonce, self.nonce)
            if NONCE.fullmatch(nonce) and hmac.compare_digest(proof.encode(), expected.encode()):
                return nonce
        where = f"{self.address[0]} port {self.address[1]}"
        raise JobError("giver", f"the process on {where} does not prove that it belongs to this run (status {status})")


class PeerServer(ThreadingHTTPServer):
    """Serves clients that prove the secret. An empty secret serves everyone, on the loopback device only.

    `sent` counts bytes of files. Only a proven request counts as one.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[PeerHandler], secret: str) -> None:
        self.secret, self.nonce = secret, secrets.token_hex(16)
        self.sent, self.last_request_at = 0, time.monotonic()
        self.unproven: dict[socket.socket, None] = {}
        self.lock = Lock()
        super().__init__(address, handler)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve in a thread while the context is open."""
        with self:
            Thread(target=self.serve_forever, args=(POLL_INTERVAL_S,), daemon=True).start()
            try:
                yield
            finally:
                self.shutdown()

    def wait(self, stop: Event, idle_timeout_s: float) -> None:
        """Return when stopped, or when no proven request came for the idle timeout."""
        while not stop.wait(POLL_INTERVAL_S) and time.monotonic() - self.last_request_at < idle_timeout_s:
            pass

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.unproven[request] = None
            oldest = next(iter(self.unproven)) if len(self.unproven) > MAX_UNPROVEN else None
            if oldest:
                del self.unproven[oldest]
        if oldest:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.forget(request)
        super().shutdown_request(request)

    def forget(self, request: Any) -> None:
        """Take a connection from the unproven ones."""
        with self.lock:
            self.unproven.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        print(f"{client_address[0]}: {type(error).__name__}: {ascii(str(error))[:200]}", file=sys.stderr)


class PeerHandler(BaseHTTPRequestHandler):
    """A request to a PeerServer. A subclass implements `answer` for a client that is proven."""

    protocol_version = "HTTP/1.1"
    server: PeerServer
    timeout = UNPROVEN_TIMEOUT_S

    def answer(self) -> None:
        """Answer a request of a proven client."""
        raise NotImplementedError

    def do_GET(self) -> None:
        if self.server.secret and self.path == HELLO:
            return self._hello()
        if self.server.secret and not self._is_proven():
            return self.reply(HTTPStatus.UNAUTHORIZED)
        self.server.forget(self.connection)
        self.connection.settimeout(CLIENT_TIMEOUT_S)
        self.server.last_request_at = time.monotonic()
        return self.answer()

    def _hello(self) -> None:
        nonce = self.headers.get("Nonce", "")
        if not NONCE.fullmatch(nonce):
            return self.reply(HTTPStatus.BAD_REQUEST)
        proof = hmac_of(self.server.secret, "server", self.server.nonce, nonce)
        return self.reply(HTTPStatus.OK, json.dumps({"nonce": self.server.nonce, "proof": proof}).encode())

    def _is_proven(self) -> bool:
        match = LOGIN.fullmatch(self.headers.get("Authorization", ""))
        request = (self.command, self.path, self.headers.get("Range", ""))
        return match is not None and hmac.compare_digest(
            match[2], hmac_of(self.server.secret, "client", self.server.nonce, match[1], *request)
        )

    def reply(self, status: HTTPStatus, body: bytes = b"", **headers: str) -> None:
        """Send a short response. `headers` have underscores for hyphens."""
        self.begin(status, len(body), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self, status: HTTPStatus, size: int, **headers: str) -> None:
        """Send the status and the headers of a response of `size` bytes."""
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_file(self, descriptor: int, **headers: str) -> None:
        """Send a file, or the range of it that the request names. The descriptor is closed."""
        with os.fdopen(descriptor, "rb") as file:
            size, wanted = os.fstat(descriptor).st_size, self.headers.get("Range")
            match = RANGE.fullmatch(wanted or f"bytes=0-{size - 1}")
            begin, end = (int(match[1]), int(match[2] or size - 1) + 1) if match else (0, 0)
            if wanted and not 0 <= begin < end <= size:
                return self.reply(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"the file has {size} bytes".encode())
            if wanted:
                # Docker continues a layer only with it.
                headers["Content_Range"] = f"bytes {begin}-{end - 1}/{size}"
            self.begin(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK, end - begin, **headers)
            while begin < end:
                # The kernel copies from the page cache to the socket, without a copy in Python.
                sent = self.connection.sendfile(file, begin, min(SEND_BYTES, end - begin))
                if not sent:
                    # The file became shorter. The closed connection tells the client that the range is incomplete.
                    self.close_connection = True
                    return None
                begin += sent
                self.server.sent += sent
                self.server.last_request_at = time.monotonic()
            return None

    def handle(self) -> None:
        # The client reports a broken connection.
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing: the result has the bytes sent."""
