"""A read-only registry over HTTP that serves the blobs of a cache by digest. Runs on the host."""

from __future__ import annotations

import hmac
import json
import re
import urllib.parse
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.oci import BlobError, media_type

PATH = re.compile(r"/v2/(?P<repository>[a-z0-9._/-]+)/(?P<kind>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")
CLIENT_TIMEOUT_S = 120


class BlobServer(ThreadingHTTPServer):
    """A blob cache over HTTP. The token may be empty only on the loopback device. `sent` counts blob bytes."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], cache: BlobCache, token: str = "") -> None:
        self.cache, self.token, self.sent = cache, token, 0
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BlobServer
    timeout = CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        login = self.headers.get("Authorization", "").encode()
        if self.server.token and not hmac.compare_digest(login, f"Bearer {self.server.token}".encode()):
            return self._reply(HTTPStatus.UNAUTHORIZED, b"")
        if path in {"/v2", "/v2/"}:
            return self._reply(HTTPStatus.OK, b"{}")
        match = PATH.fullmatch(path)
        if not match:
            return self._reply(HTTPStatus.NOT_FOUND, b"{}")
        try:
            if match["kind"] == "manifests":
                return self._send_manifest(match["repository"], match["digest"])
            return self._send_blob(match["repository"], match["digest"])
        except BlobError as error:
            body = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": str(error)}]}).encode()
            return self._reply(HTTPStatus.NOT_FOUND, body)

    do_HEAD = do_GET  # noqa: N815  the name that http.server looks for

    def _send_manifest(self, repository: str, digest: str) -> None:
        content = self.server.cache.manifest(repository, digest)
        return self._reply(HTTPStatus.OK, content, media_type(content), digest)

    def _send_blob(self, repository: str, digest: str) -> None:
        blocks = self.server.cache.read(repository, digest)
        if self.command == "HEAD":
            file = self.server.cache.blob(digest)
            return self._reply(HTTPStatus.OK if file.exists() else HTTPStatus.NOT_FOUND, b"")
        # An error of the first block can still become a status.
        first = next(blocks, b"")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._send_chunk(first)
            for block in blocks:
                self._send_chunk(block)
            self.wfile.write(b"0\r\n\r\n")
        except BlobError:
            # Without the last chunk the client knows that the blob is incomplete.
            self.close_connection = True

    def _send_chunk(self, block: bytes) -> None:
        if block:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
            self.server.sent += len(block)

    def _reply(self, status: HTTPStatus, body: bytes, kind: str = "application/json", digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing: the output of docker pull has the outcome."""
