"""Serve files of named models as byte ranges over HTTP, to clients that have the token. Runs on the host.

GET /FOLDER/COMMIT is the manifest, GET /FOLDER/COMMIT/PATH with a Range is a part of a file.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import TypedDict
from urllib.parse import unquote

from vllm_spark.node.pull.hub_cache import HubRequest
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import Manifest, Source, source_of
from vllm_spark.node.pull.partial_file import CHUNK_BYTES

# A server without a request for this long was left behind by a run that was killed.
IDLE_TIMEOUT_S = 900.0
# A client that is gone must not keep a thread forever.
CLIENT_TIMEOUT_S = 60.0
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class FileServerRequest(HubRequest, total=False):
    """Models to serve on one address of the fabric. `idle_timeout_s` ends the server without a request."""

    address: str
    port: int
    token: str
    idle_timeout_s: float


class RangeServer(ThreadingHTTPServer):
    """Serves the files of models read-only. `models`: FOLDER/COMMIT -> the model and its manifest."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], token: str, models: Mapping[str, tuple[Source, Manifest]]) -> None:
        self.token, self.last_request_at, self.sent = token, time.monotonic(), 0
        self.manifests = {path: manifest for path, (_, manifest) in models.items()}
        self.files: dict[str, Path] = {
            f"{path}/{entry.path}": model.file(entry)
            for path, (model, manifest) in models.items()
            for entry in manifest.files
        }
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer
    timeout = CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        self.server.last_request_at = time.monotonic()
        login = self.headers.get("Authorization", "")
        path = unquote(self.path.lstrip("/"))
        if not hmac.compare_digest(login.encode(), f"Bearer {self.server.token}".encode()):
            return self._reply(HTTPStatus.UNAUTHORIZED, b"")
        if path in self.server.manifests:
            return self._reply(HTTPStatus.OK, json.dumps(self.server.manifests[path].to_json()).encode())
        if path not in self.server.files:
            return self._reply(HTTPStatus.NOT_FOUND, b"")
        return self._send_range(self.server.files[path])

    def _send_range(self, path: Path) -> None:
        try:
            file = path.open("rb")
        except OSError as error:
            return self._reply(HTTPStatus.GONE, str(error).encode())
        with file:
            size = os.fstat(file.fileno()).st_size
            match = RANGE.fullmatch(self.headers.get("Range", ""))
            begin, end = (int(match[1]), int(match[2]) + 1) if match else (0, size)
            if not 0 <= begin < end <= size:
                return self._reply(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"the file has {size} bytes".encode())
            self.send_response(HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            self.wfile.flush()
            while begin < end:
                # The kernel copies from the page cache to the socket, without a copy in Python.
                sent = self.connection.sendfile(file, begin, min(CHUNK_BYTES, end - begin))
                if not sent:
                    # The file became shorter. The closed connection tells the client that the range is incomplete.
                    self.close_connection = True
                    return None
                begin += sent
                self.server.sent += sent
                self.server.last_request_at = time.monotonic()
            return None

    def _reply(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        # The client reports a broken connection.
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing: the result has the bytes sent."""


class SentBytes(TypedDict):
    """Result of a server: bytes of file content."""

    sent: int


def serve_files(request: FileServerRequest, progress: JobProgress, stop: Event) -> SentBytes:
    """Serve until stopped, or until no request came for the idle timeout. Raises JobError without a manifest."""
    models = {}
    for ref in request["sources"]:
        model = source_of(request["hub"], ref)
        manifest = model.manifest()
        if manifest is None:
            raise JobError("no-manifest", f"{model.manifest_file} does not exist")
        models[f"{model.folder}/{model.commit}"] = (model, manifest)
    idle_timeout_s = float(request.get("idle_timeout_s", IDLE_TIMEOUT_S))
    with RangeServer((request["address"], request["port"]), request["token"], models) as server:
        progress.enter("serving", 0)
        Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
        while not stop.wait(0.2) and time.monotonic() - server.last_request_at < idle_timeout_s:
            progress.done = server.sent
        server.shutdown()
        return {"sent": server.sent}
