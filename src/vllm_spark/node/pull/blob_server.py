"""A registry over HTTP that serves the blobs of caches by digest, and accepts a push. Runs on the host.
It serves models too if it is given some (range_server.py): a bundle has both.

Docker speaks plain HTTP to the loopback device without configuration, so this host's Docker pulls from it and pushes to
it. Another Spark proves itself with the secret of the run, and can only read.
"""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus

from vllm_spark.node.pull.blob_cache import BLOCK_BYTES, MAX_MANIFEST_BYTES, BlobCache
from vllm_spark.node.pull.blob_upload import Uploads, body_blocks
from vllm_spark.node.pull.oci import BlobError, digest_of, media_type
from vllm_spark.node.pull.peer_server import CLIENT_TIMEOUT_S
from vllm_spark.node.pull.range_server import ModelHandler, RangeServer

TLS_HANDSHAKE = b"\x16"
DIGEST = "sha256:[0-9a-f]{64}"
PATH = re.compile(
    rf"/v2/(?P<repository>[a-z0-9._/-]+)/(?:manifests/(?P<manifest>{DIGEST}|[\w][\w.-]{{0,127}})|blobs/(?P<blob>{DIGEST}))"
)
UPLOAD = re.compile(r"/v2/(?P<repository>[a-z0-9._/-]+)/blobs/uploads/(?P<id>[0-9a-f]{32})?")


class _Handler(ModelHandler):
    server: BlobServer
    do_HEAD = ModelHandler.do_GET  # noqa: N815  the name that http.server looks for

    def handle(self) -> None:
        # The containerd store tries TLS first, also on the loopback device. It repeats a request in plain HTTP only
        # after a reply that begins with HTTP (moby daemon/containerd/resolver.go).
        with suppress(OSError):
            if self.connection.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE:
                self.connection.recv(BLOCK_BYTES)
                self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                return
        super().handle()

    def answer(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        if path in {"/v2", "/v2/"}:
            return self._reply(HTTPStatus.OK, b"{}")
        match = PATH.fullmatch(path)
        if not match:
            return super().answer()
        try:
            cache = self.server.cache_of(match["repository"])
            if match["manifest"]:
                return self._send_manifest(cache, match["manifest"])
            return self._head_blob(cache, match["blob"]) if self.command == "HEAD" else self._send(cache, match["blob"])
        except BlobError as error:
            # Docker asks whether a tag exists before it pushes it.
            return self._reply(HTTPStatus.NOT_FOUND, b"") if self.command == "HEAD" else self._refuse(error)

    def _send_manifest(self, cache: BlobCache, reference: str) -> None:
        digest = reference if ":" in reference else self.server.tags.get(reference, "")
        if not digest:
            raise BlobError(f"no tag {reference}")
        content = cache.manifest(digest)
        return self._reply(HTTPStatus.OK, content, media_type(content), Docker_Content_Digest=digest)

    def _head_blob(self, cache: BlobCache, digest: str) -> None:
        size = cache.size_of(digest)
        if size is None:
            return self._reply(HTTPStatus.NOT_FOUND, b"")
        # A push writes this size into the manifest.
        return self.begin(HTTPStatus.OK, size, Docker_Content_Digest=digest)

    def _send(self, cache: BlobCache, digest: str) -> None:
        if cache.is_stored(digest, 0):
            stored = os.open(cache.blob(digest), os.O_RDONLY | os.O_CLOEXEC)
            return self.send_file(stored, Content_Type="application/octet-stream", Docker_Content_Digest=digest)
        blocks = cache.read(digest)
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
        except BlobError as error:
            # Without the last chunk the client knows that the blob is incomplete.
            self.server.fault, self.close_connection = str(error), True
        return None

    def _send_chunk(self, block: bytes) -> None:
        if block:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
            self.server.sent += len(block)

    def upload(self) -> None:
        """Answer a request of a push (opencontainers/distribution-spec, Pushing). Another Spark cannot push."""
        split = urllib.parse.urlsplit(self.path)
        uploads, query = self.server.uploads, dict(urllib.parse.parse_qsl(split.query))
        manifest, upload = PATH.fullmatch(split.path), UPLOAD.fullmatch(split.path)
        if uploads is None or self.server.secret or not (upload or manifest):
            self.close_connection = True
            return self._reply(HTTPStatus.METHOD_NOT_ALLOWED, b"{}")
        self.server.forget(self.connection)
        self.connection.settimeout(CLIENT_TIMEOUT_S)
        try:
            if upload:
                return self._upload_blob(uploads, upload["repository"], upload["id"] or "", query)
            return self._put_manifest(str(manifest and manifest["repository"]), str(manifest and manifest["manifest"]))
        except (BlobError, ValueError) as error:
            self.close_connection = True
            return self._refuse(BlobError(str(error)), HTTPStatus.BAD_REQUEST)

    do_POST = do_PATCH = do_PUT = upload  # noqa: N815  the names that http.server looks for

    def _upload_blob(self, uploads: Uploads, repository: str, upload: str, query: Mapping[str, str]) -> None:
        if self.command == "POST":
            mounted = query.get("mount", "")
            if mounted and self.server.cache_of(repository).size_of(mounted) is not None:
                return self._created(f"/v2/{repository}/blobs/{mounted}", mounted)
            upload = uploads.start()
        at = uploads.append(upload, body_blocks(self.rfile, self.headers))
        if self.command != "PATCH" and (digest := query.get("digest", "")):
            uploads.finish(upload, digest)
            return self._created(f"/v2/{repository}/blobs/{digest}", digest)
        location = {"Location": f"/v2/{repository}/blobs/uploads/{upload}", "Range": f"0-{max(at - 1, 0)}"}
        return self._reply(HTTPStatus.ACCEPTED, b"", Docker_Upload_UUID=upload, **location)

    def _put_manifest(self, repository: str, reference: str) -> None:
        content = b"".join(body_blocks(self.rfile, self.headers, MAX_MANIFEST_BYTES))
        if ":" in reference and digest_of(content) != reference:
            raise BlobError(f"{reference} arrived with the digest {digest_of(content)}")
        digest = self.server.cache_of(repository).store(content)
        if ":" not in reference:
            self.server.tags[reference] = digest
        return self._created(f"/v2/{repository}/manifests/{digest}", digest)

    def _created(self, location: str, digest: str) -> None:
        return self._reply(HTTPStatus.CREATED, b"", Location=location, Docker_Content_Digest=digest)

    def _refuse(self, error: BlobError, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        self.server.fault = str(error)
        body = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": str(error)}]}).encode()
        return self._reply(status, body)

    def _reply(self, status: HTTPStatus, body: bytes, kind: str = "application/json", **headers: str) -> None:
        version = {"Docker_Distribution_API_Version": "registry/2.0"}
        self.reply(status, body, Content_Type=kind, **version, **headers)


class BlobServer(RangeServer):
    """Blob caches over HTTP, by repository; "" has all others. `sent` counts blob bytes, `fault` is the last error.

    `tags` of the repositories: tag -> digest. `uploads` accepts a push.
    """

    handler = _Handler

    def __init__(
        self,
        address: tuple[str, int],
        caches: Mapping[str, BlobCache],
        secret: str = "",
        tags: Mapping[str, str] | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self.caches, self.tags, self.uploads, self.fault = caches, dict(tags or {}), uploads, ""
        super().__init__(address, secret)

    def cache_of(self, repository: str) -> BlobCache:
        """Return the cache of a repository. Raises BlobError."""
        cache = self.caches.get(repository) or self.caches.get("")
        if cache is None:
            raise BlobError(f"this run serves no {repository}")
        return cache
