"""Images by digest in an OCI image layout (blobs/sha256/…), filled from an upstream. Runs on the host.

The upstream of the first Spark is a registry or a bundle, and that of the other Sparks is the first one. Every blob is
verified against its digest before its last block is passed on.
"""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from threading import Lock

from vllm_spark.node.pull.files import rename_durably, write_json
from vllm_spark.node.pull.oci import (
    INDEX_TYPE,
    MANIFEST_TYPES,
    OCI_LAYOUT,
    BlobError,
    Descriptor,
    digest_of,
    matches_platform,
    media_type,
    members,
)
from vllm_spark.node.pull.upstream import RefusedByRegistryError, Upstream
from vllm_spark.node.state_file import replace_file

MAX_MANIFEST_BYTES = 4 << 20
BLOCK_BYTES = 1 << 20
# A layer has gigabytes. A connection that ends early is reopened at the byte where it ended.
MAX_RESUMES = 5


@dataclass(slots=True)
class BlobCache:
    """A folder of blobs, and the repository that fills it. `keep` stores what is read from upstream.

    `fetched` counts the bytes read from upstream. Caches of one folder share their locks (`sibling`).
    """

    folder: Path
    upstream: Upstream | None = None
    keep: bool = True
    fetched: int = 0
    blob_locks: dict[str, Lock] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def sibling(self, upstream: Upstream | None) -> BlobCache:
        """Return a cache of the same folder with another upstream."""
        return BlobCache(self.folder, upstream, self.keep, blob_locks=self.blob_locks, lock=self.lock)

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def create(self) -> None:
        """Create the folder as an OCI image layout."""
        (self.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        layout = self.folder / "oci-layout"
        if not layout.exists():
            replace_file(layout, OCI_LAYOUT)

    def manifest(self, digest: str) -> bytes:
        """Return the bytes of an index or a manifest. Raises BlobError."""
        file = self.blob(digest)
        content = file.read_bytes() if file.exists() else b""
        if digest_of(content) == digest:
            return content
        # A manifest that a loss of power has cut counts as absent.
        if self.upstream is None:
            has = f"{len(content)} bytes with another sha256 as" if content else "no"
            raise BlobError(f"{self.folder} has {has} {digest}")
        with self.upstream.open("manifests", digest, ", ".join(MANIFEST_TYPES)) as response:
            content = response.read(MAX_MANIFEST_BYTES)
        if digest_of(content) != digest:
            raise BlobError(f"{digest} of {self.upstream.repository} is {len(content)} bytes with another sha256")
        if self.keep:
            self.store(content)
        return content

    def store(self, content: bytes) -> str:
        """Store a manifest and return its digest."""
        file = self.blob(digest_of(content))
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content)
        return digest_of(content)

    def size_of(self, digest: str) -> int | None:
        """Return the bytes of a blob that is in the folder or upstream, else None."""
        if self.blob(digest).exists():
            return self.blob(digest).stat().st_size
        try:
            if self.upstream:
                with self.upstream.open("blobs", digest) as response:
                    return int(response.headers["Content-Length"])
        except (RefusedByRegistryError, ValueError, TypeError):
            return None
        except BlobError:
            # It does not answer. A push asks for every layer, and each question would wait for the timeout.
            self.upstream = None
        return None

    def ensure_blob(self, digest: str, size: int = 0) -> Path:
        """Fetch a blob unless it is in the folder, and return its path. Raises BlobError."""
        for _ in self.read(digest, size):
            pass
        return self.blob(digest)

    def read(self, digest: str, size: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a blob, from the folder or from upstream. `size` is 0 if it is unknown.

        The last block follows only if the digest matches. Raises BlobError.
        """
        with self.lock:
            blob_lock = self.blob_locks.setdefault(digest, Lock())
        # Concurrent readers of one blob wait for each other, so it is downloaded once.
        with blob_lock:
            if self.is_stored(digest, size):
                yield from _blocks(self.blob(digest))
            elif self.upstream is None:
                raise BlobError(f"{self.folder} has no {digest}")
            else:
                yield from self._read_upstream(self.upstream, digest, size)

    def is_stored(self, digest: str, size: int) -> bool:
        """Return True if a blob is in the folder. One that a loss of power has cut is removed if it can be fetched."""
        file = self.blob(digest)
        if not file.exists():
            return False
        if self.upstream is None or not size or file.stat().st_size == size:
            return True
        file.unlink()
        return False

    def _read_upstream(self, upstream: Upstream, digest: str, size: int) -> Iterator[bytes]:
        part = self.blob(digest).with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        if not self.keep:
            part.unlink(missing_ok=True)
        sha256, last = hashlib.sha256(), b""
        blocks = self._continued(part, upstream, digest, size) if self.keep else self._rest(upstream, digest, 0, size)
        for block in blocks:
            sha256.update(block)
            if last:
                yield last
            last = block
        if f"sha256:{sha256.hexdigest()}" != digest:
            part.unlink(missing_ok=True)
            raise BlobError(f"{digest} of {upstream.repository} arrived with sha256 {sha256.hexdigest()}")
        if self.keep:
            rename_durably(part, self.blob(digest))
        yield last

    def _continued(self, part: Path, upstream: Upstream, digest: str, size: int) -> Iterator[bytes]:
        """Yield the part that an earlier run has left, then the rest, which is appended to the part."""
        with part.open("a+b") as file:
            file.seek(0)
            while block := file.read(BLOCK_BYTES):
                yield block
            for block in self._rest(upstream, digest, file.tell(), size):
                file.write(block)
                yield block

    def _rest(self, upstream: Upstream, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a blob from byte `at`, over several connections if one ends early."""
        lost = 0
        while not size or at < size:
            try:
                with upstream.open("blobs", digest, at=at) as response:
                    is_rest = response.status == HTTPStatus.PARTIAL_CONTENT
                    expected = (at if is_rest else 0) + int(response.headers.get("Content-Length") or 0)
                    if not is_rest:
                        # This server knows no ranges.
                        _skip(response, at)
                    while block := response.read(BLOCK_BYTES):
                        at += len(block)
                        self.fetched += len(block)
                        yield block
                if at >= (size or expected):
                    return
                raise BlobError(f"{digest} of {upstream.repository} ended after {at} bytes")
            except RefusedByRegistryError as error:
                if at and error.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return  # no byte is left, and the caller compares the digest
                raise
            except (OSError, http.client.HTTPException, BlobError) as error:
                lost += 1
                if lost > MAX_RESUMES:
                    what = f"{digest} of {upstream.repository}"
                    raise BlobError(f"{what}: {lost} connections were lost: {error}") from error

    def write_index(self, images: dict[str, bytes]) -> None:
        """Write index.json of the layout, so that other tools can read it. `images`: full name -> manifest."""
        entries = [
            {
                "mediaType": media_type(content),
                "digest": digest_of(content),
                "size": len(content),
                "annotations": {"org.opencontainers.image.ref.name": name},
            }
            for name, content in sorted(images.items())
        ]
        write_json(self.folder / "index.json", {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries})


def _skip(response: http.client.HTTPResponse, size: int) -> None:
    while size and (block := response.read(min(BLOCK_BYTES, size))):
        size -= len(block)


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(BLOCK_BYTES):
            yield block


def image_blobs(cache: BlobCache, digest: str, platforms: tuple[str, ...]) -> Iterator[Descriptor]:
    """Yield config and layers of an image for these platforms. Raises BlobError, ValueError or KeyError."""
    images, blobs = members(cache.manifest(digest))
    for image in images:
        if matches_platform(image, platforms):
            yield from image_blobs(cache, image["digest"], platforms)
    yield from blobs


def mirror_image(cache: BlobCache, digest: str, platforms: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Fetch an image for these platforms. Yields (digest, size) of each blob before it is fetched. Raises BlobError."""
    cache.create()
    for blob in image_blobs(cache, digest, platforms):
        yield blob["digest"], int(blob["size"])
        cache.ensure_blob(blob["digest"], int(blob["size"]))


def missing_blobs(folder: Path, digest: str, platforms: tuple[str, ...]) -> Iterator[str]:
    """Yield a description of every blob of an image that is missing or has another size. No blob is read."""
    cache = BlobCache(folder)
    try:
        blobs = list(image_blobs(cache, digest, platforms))
    except (BlobError, ValueError, KeyError) as error:
        yield f"image {digest}: {error}"
        return
    if not blobs:
        yield f"image {digest} has no platform of {', '.join(platforms)}"
    for blob in blobs:
        file = cache.blob(blob["digest"])
        if not file.is_file():
            yield f"image {digest}: {blob['digest']} is missing"
        elif file.stat().st_size != blob["size"]:
            yield f"image {digest}: {file} has {file.stat().st_size} bytes, not {blob['size']}"
