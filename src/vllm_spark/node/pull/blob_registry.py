"""Images by digest, from a folder or through it: a registry that can only be read. Runs on both Sparks.

A digest belongs to the bytes that a registry has: `docker save` loses them, `docker push` makes others. So the head
keeps what it gets in an OCI image layout (blobs/sha256/…), and Docker pulls from this program, on the head as on the
worker. What the folder lacks comes from the registry behind it, once, and is kept where `keep` says so: a worker has
the head's shelf behind it, and gets the layers that it lacks over the fabric. Every blob is held against its digest.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from vllm_spark.node.pull.hub_cache import place, sha256_of

DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
PATH = re.compile(r"/v2/(?P<repository>[a-z0-9._/-]+)/(?P<kind>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MAX_MANIFEST = 4 << 20
BLOCK = 1 << 20
TIMEOUT_S = 30.0
# A layer has gigabytes; a connection that ends within one is opened anew where it ended.
RESUMES = 5
DOCKER_CONFIG = Path.home() / ".docker" / "config.json"

OCI_LAYOUT = '{"imageLayoutVersion": "1.0.0"}\n'


class BlobCacheError(Exception):
    """A blob that cannot be had, or is not what its digest says."""


@dataclass(slots=True)
class Upstream:
    """The registry behind a shelf: its URL, and the token of another shelf or none. Logins are those of `docker login`
    of this user, by `host`."""

    url: str
    host: str = ""
    token: str = ""
    bearer: dict[str, str] = field(default_factory=dict)

    def open(self, path: str, accept: str, at: int = 0) -> http.client.HTTPResponse:
        """A reply to read from byte `at`. Raises ShelfError."""
        try:
            return self._open(path, accept, at)
        except urllib.error.HTTPError as error:
            raise BlobCacheError(f"{self.url}{path} answers {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise BlobCacheError(f"{self.url}{path}: {getattr(error, 'reason', error)}") from error

    def _open(self, path: str, accept: str, at: int) -> http.client.HTTPResponse:
        repository = path.split("/v2/", 1)[1].rsplit("/", 2)[0]
        for again in (False, True):
            request = urllib.request.Request(self.url + path, headers={"Accept": accept})  # noqa: S310  the URL is the plan's
            given = f"Bearer {self.token}" if self.token else self.bearer.get(repository, "")
            if given:
                # A registry sends on to a store that takes no second login.
                request.add_unredirected_header("Authorization", given)
            if at:
                request.add_header("Range", f"bytes={at}-")
            try:
                return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # type: ignore[no-any-return]  # noqa: S310
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.UNAUTHORIZED or again or self.token:
                    raise
                self.bearer[repository] = self._login(error.headers.get("WWW-Authenticate", ""), repository)
        raise BlobCacheError(f"{self.url}{path} wants a login")

    def _login(self, challenge: str, repository: str) -> str:
        """What a registry takes as a login (distribution.github.io/distribution/spec/auth/token)."""
        kind, _, parameters = challenge.partition(" ")
        known = dict(re.findall(r'(\w+)="([^"]*)"', parameters))
        password = _password(self.host)
        if kind.lower() == "basic" and password:
            return f"Basic {password}"
        if kind.lower() != "bearer" or "realm" not in known:
            raise BlobCacheError(f"{self.url} wants the login {challenge[:100]!r}, and this box has none")
        query = urllib.parse.urlencode(
            {"service": known.get("service", ""), "scope": known.get("scope", f"repository:{repository}:pull")}
        )
        request = urllib.request.Request(f"{known['realm']}?{query}")  # noqa: S310
        if password:
            request.add_unredirected_header("Authorization", f"Basic {password}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
            answer = json.loads(reply.read(MAX_MANIFEST))
        return f"Bearer {answer.get('token') or answer.get('access_token')}"


def _password(host: str) -> str:
    """`docker login` here, base64 of user:password."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        logins = json.loads(DOCKER_CONFIG.read_text(encoding="utf-8")).get("auths", {})
        name = "https://index.docker.io/v1/" if host == "docker.io" else host
        found = str(logins.get(name, {}).get("auth", ""))
        base64.b64decode(found, validate=True)
        return found
    return ""


@dataclass(slots=True)
class BlobCache:
    """A folder of blobs, and the registry behind it or none."""

    folder: Path
    behind: Upstream | None = None
    keep: bool = True
    fetched: int = 0
    locks: dict[str, Lock] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def make(self) -> None:
        """Have the folder, as an OCI image layout."""
        (self.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        layout = self.folder / "oci-layout"
        if not layout.exists():
            layout.write_text(OCI_LAYOUT, encoding="utf-8")

    def manifest(self, repository: str, digest: str) -> bytes:
        """The bytes of an index or a manifest. Raises ShelfError."""
        file = self.blob(digest)
        if file.exists():
            content = file.read_bytes()
        elif self.behind is None:
            raise BlobCacheError(f"{self.folder} has no {digest}")
        else:
            with self.behind.open(f"/v2/{repository}/manifests/{digest}", ", ".join(MANIFESTS)) as reply:
                content = reply.read(MAX_MANIFEST)
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise BlobCacheError(f"{digest} of {repository} is {len(content)} bytes with another sha256")
        if self.keep and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return content

    def have(self, repository: str, digest: str, size: int = 0) -> Path:
        """A blob that is here now, whole. Raises ShelfError."""
        for _ in self.read(repository, digest, size):
            pass
        return self.blob(digest)

    def read(self, repository: str, digest: str, size: int = 0) -> Iterator[bytes]:
        """The bytes of a blob: of the folder, else of the registry behind, kept on the way. `size` is known to whoever
        has the manifest. Raises ShelfError; the last piece comes only when the digest is right."""
        with self.lock:
            own = self.locks.setdefault(digest, Lock())
        # Two that ask for one layer get it one after the other: it comes from outside once.
        with own:
            if self.blob(digest).exists():
                yield from _pieces(self.blob(digest))
            else:
                yield from self._through(repository, digest, size)

    def _through(self, repository: str, digest: str, size: int) -> Iterator[bytes]:
        if self.behind is None:
            raise BlobCacheError(f"{self.folder} has no {digest}")
        part = self.blob(digest).with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        if not self.keep:
            part.unlink(missing_ok=True)
        hashed, held = hashlib.sha256(), b""
        for piece in self._pieces(repository, digest, part, size):
            hashed.update(piece)
            if held:
                yield held
            held = piece
        if f"sha256:{hashed.hexdigest()}" != digest:
            part.unlink(missing_ok=True)
            raise BlobCacheError(f"{digest} of {repository} arrived with sha256 {hashed.hexdigest()}")
        if self.keep:
            part.replace(self.blob(digest))
        yield held

    def _pieces(self, repository: str, digest: str, part: Path, size: int) -> Iterator[bytes]:
        """What an earlier run has left of a blob, then the rest, which is left for a later one as it comes."""
        if part.exists():
            yield from _pieces(part)
            if f"sha256:{sha256_of(part)}" == digest:
                return
        at = part.stat().st_size if part.exists() else 0
        if not self.keep:
            yield from self._resumed(repository, digest, at, size)
            return
        with part.open("ab") as file:
            for piece in self._resumed(repository, digest, at, size):
                file.write(piece)
                yield piece

    def _resumed(self, repository: str, digest: str, at: int, size: int) -> Iterator[bytes]:
        """The rest of a blob from byte `at`, over as many connections as it takes."""
        assert self.behind is not None  # noqa: S101  for the type checker
        cuts = 0
        while not size or at < size:
            try:
                with self.behind.open(f"/v2/{repository}/blobs/{digest}", "*/*", at) as reply:
                    if at and reply.status != HTTPStatus.PARTIAL_CONTENT:
                        _skip(reply, at)
                    expected = at + int(reply.headers.get("Content-Length") or 0)
                    while piece := reply.read(BLOCK):
                        at += len(piece)
                        self.fetched += len(piece)
                        yield piece
                if at >= (size or expected):
                    return
                raise BlobCacheError(f"{digest} of {repository} ended after {at} bytes")
            except (OSError, http.client.HTTPException, BlobCacheError) as error:
                cuts += 1
                if cuts > RESUMES:
                    raise BlobCacheError(f"{digest} of {repository}: {cuts} connections were cut: {error}") from error
                if isinstance(error, BlobCacheError) and " answers " in str(error):
                    raise


def _skip(reply: http.client.HTTPResponse, size: int) -> None:
    while size and (piece := reply.read(min(BLOCK, size))):
        size -= len(piece)


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(BLOCK):
            yield piece


def members(content: bytes) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(the images of an index, the blobs of a manifest): of each document one is empty."""
    document = json.loads(content)
    blobs = [document["config"], *document.get("layers", [])] if "config" in document else []
    return list(document.get("manifests", [])), blobs


def matches_platform(entry: Mapping[str, Any], platforms: tuple[str, ...]) -> bool:
    """Is an index's entry an image for one of them? Its attestations are for platform unknown/unknown."""
    platform = entry.get("platform", {})
    return f"{platform.get('os')}/{platform.get('architecture')}" in platforms


def mirror_image(
    shelf: BlobCache, repository: str, digest: str, platforms: tuple[str, ...]
) -> Iterator[tuple[str, int]]:
    """Fetch a whole image: (digest, size) of each blob before it is fetched. Of an index, the images for these
    platforms. Raises ShelfError."""
    shelf.make()
    images, blobs = members(shelf.manifest(repository, digest))
    for image in images:
        if matches_platform(image, platforms):
            yield from mirror_image(shelf, repository, str(image["digest"]), platforms)
    for blob in blobs:
        yield str(blob["digest"]), int(blob["size"])
        shelf.have(repository, str(blob["digest"]), int(blob["size"]))


def missing_blobs(folder: Path, digest: str, platforms: tuple[str, ...], *, read: bool = True) -> Iterator[str]:
    """What a folder lacks of an image, each as a reason; `read` holds every blob against its digest."""
    shelf = BlobCache(folder)
    try:
        images, blobs = members(shelf.manifest("", digest))
    except (BlobCacheError, ValueError, KeyError) as error:
        yield f"image {digest}: {error}"
        return
    wanted = [image for image in images if matches_platform(image, platforms)]
    if images and not wanted:
        yield f"image {digest} has no platform of {', '.join(platforms)}"
    for image in wanted:
        yield from missing_blobs(folder, str(image["digest"]), platforms, read=read)
    for blob in blobs:
        file = shelf.blob(str(blob["digest"]))
        if not file.is_file():
            yield f"image {digest} lacks {blob['digest']}"
        elif file.stat().st_size != blob["size"]:
            yield f"image {digest}: {file} has {file.stat().st_size} bytes, not {blob['size']}"
        elif read and f"sha256:{sha256_of(file)}" != blob["digest"]:
            yield f"image {digest}: {file} has another sha256 than its name"


class Server(ThreadingHTTPServer):
    """A shelf over HTTP. An empty token is for the loopback device alone."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], shelf: BlobCache, token: str = "") -> None:
        self.shelf, self.token, self.sent = shelf, token, 0
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    timeout = 120

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        given = self.headers.get("Authorization", "").encode()
        if self.server.token and not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            return self._say(HTTPStatus.UNAUTHORIZED, b"")
        if path in {"/v2", "/v2/"}:
            return self._say(HTTPStatus.OK, b"{}")
        asked = PATH.fullmatch(path)
        if not asked:
            return self._say(HTTPStatus.NOT_FOUND, b"{}")
        try:
            if asked["kind"] == "manifests":
                return self._manifest(asked["repository"], asked["digest"])
            return self._blob(asked["repository"], asked["digest"])
        except BlobCacheError as error:
            body = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": str(error)}]}).encode()
            return self._say(HTTPStatus.NOT_FOUND, body)

    do_HEAD = do_GET  # noqa: N815  the name that http.server looks for

    def _manifest(self, repository: str, digest: str) -> None:
        content = self.server.shelf.manifest(repository, digest)
        document = json.loads(content)
        kind = document.get("mediaType") or (MANIFESTS[0] if "manifests" in document else MANIFESTS[2])
        return self._say(HTTPStatus.OK, content, kind, digest)

    def _blob(self, repository: str, digest: str) -> None:
        pieces = self.server.shelf.read(repository, digest)
        if self.command == "HEAD":
            file = self.server.shelf.blob(digest)
            return self._say(HTTPStatus.OK if file.exists() else HTTPStatus.NOT_FOUND, b"")
        # The first piece shows whether there is anything to send at all.
        first = next(pieces, b"")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._piece(first)
            for piece in pieces:
                self._piece(piece)
            self.wfile.write(b"0\r\n\r\n")
        except BlobCacheError:
            # No last chunk: whoever reads knows that it is not whole.
            self.close_connection = True

    def _piece(self, piece: bytes) -> None:
        if piece:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.server.sent += len(piece)

    def _say(self, status: HTTPStatus, body: bytes, kind: str = "application/json", digest: str = "") -> None:
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
        """Docker says what it got."""


def write_index(folder: Path, images: Mapping[str, bytes]) -> None:
    """Write index.json of the layout: full name -> manifest's bytes, so that other tools can read the folder."""
    entries = [
        {
            "mediaType": json.loads(content).get("mediaType", MANIFESTS[0]),
            "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
            "size": len(content),
            "annotations": {"org.opencontainers.image.ref.name": name},
        }
        for name, content in sorted(images.items())
    ]
    place(folder / "index.json", {"schemaVersion": 2, "mediaType": MANIFESTS[0], "manifests": entries})
