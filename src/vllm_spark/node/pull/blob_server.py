"""A read-only registry over HTTP that serves the blobs of a cache by digest. Runs on the host."""

from __future__ import annotations

import json
import re
import urllib.parse
from http import HTTPStatus

from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.oci import BlobError, media_type
from vllm_spark.node.pull.peer_server import PeerHandler, PeerServer

PATH = re.compile(r"/v2/(?P<repository>[a-z0-9._/-]+)/(?P<kind>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")


class BlobServer(PeerServer):
    """A blob cache over HTTP. `sent` counts blob bytes."""

    def __init__(self, address: tuple[str, int], cache: BlobCache, secret: str = "") -> None:
        self.cache = cache
        super().__init__(address, _Handler, secret)


class _Handler(PeerHandler):
    server: BlobServer
    do_HEAD = PeerHandler.do_GET  # noqa: N815  the name that http.server looks for

    def answer(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
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

    def _send_manifest(self, repository: str, digest: str) -> None:
        content = self.server.cache.manifest(repository, digest)
        return self._reply(HTTPStatus.OK, content, media_type(content), Docker_Content_Digest=digest)

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

    def _reply(self, status: HTTPStatus, body: bytes, kind: str = "application/json", **headers: str) -> None:
        version = {"Docker_Distribution_API_Version": "registry/2.0"}
        self.reply(status, body, Content_Type=kind, **version, **headers)
