"""A fake HTTP server on the loopback device or on a unix socket: a function from a path to a response."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import loopback


@dataclass(slots=True)
class Reply:
    """A response. A body that is neither text nor bytes is sent as JSON. Each line of a header is sent on its own."""

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


# Path and headers of one request.
Request = tuple[str, Mapping[str, str]]
Respond = Callable[[str, Mapping[str, str]], Reply]


class QuietServer(ThreadingHTTPServer):
    """A server that prints nothing about a client that went away: a thread may notice that when another test, which
    looks at what is printed, runs already."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class UnixServer(QuietServer):
    """A server on a unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        """Bind as a server without a host name."""
        TCPServer.server_bind(self)


def own_certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return the context of a server with a certificate of its own for 127.0.0.1, and the file of the certificate."""
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    words = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=server")
    name = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run(["openssl", "req", *words, *name], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


@contextmanager
def serving(
    respond: Respond, path: Path | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[Request]]]:
    """Serve every path through `respond`, on a port or on the unix socket `path`. Yields the URL, and the list of
    requests so far."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, dict(self.headers)))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = respond(self.path, self.headers)
            content = reply.content()
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
                for line in value.splitlines() or [""]:
                    self.send_header(name, line)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_POST = do_GET  # noqa: N815  the names that http.server looks for

        def log_message(self, *_: object) -> None:
            """Log nothing: the list has every request."""

    server = UnixServer(str(path), Handler) if path else QuietServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with loopback.running(server):
        yield f"unix:{path}" if path else f"http://127.0.0.1:{server.server_port}", requests
