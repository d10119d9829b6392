"""Blobs of a push, which become blobs of a cache once their digest is verified. Runs on the host."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from email.message import Message
from io import BufferedIOBase

from vllm_spark.node.pull.blob_cache import BLOCK_BYTES, BlobCache
from vllm_spark.node.pull.files import rename_durably, sha256_of
from vllm_spark.node.pull.oci import BlobError

SUFFIX = ".upload"
DIGEST = re.compile("sha256:[0-9a-f]{64}")
MAX_CHUNK_LINE = 1000


class Uploads:
    """The uploads of one push into a cache."""

    def __init__(self, cache: BlobCache) -> None:
        self.cache, self.known = cache, set[str]()
        self.folder = cache.blob("x").parent
        self.remove_unfinished()

    def remove_unfinished(self) -> None:
        """Remove uploads that an interrupted push has left, or that Docker has started in vain."""
        for left in self.folder.glob(f"*{SUFFIX}"):
            left.unlink()

    def start(self) -> str:
        """Start an upload and return its id."""
        upload = secrets.token_hex(16)
        self.known.add(upload)
        (self.folder / f"{upload}{SUFFIX}").touch()
        return upload

    def append(self, upload: str, blocks: Iterable[bytes]) -> int:
        """Append blocks to an upload, and return its bytes so far. Raises BlobError."""
        if upload not in self.known:
            raise BlobError(f"no upload {upload}")
        with (self.folder / f"{upload}{SUFFIX}").open("ab") as file:
            for block in blocks:
                file.write(block)
            return file.tell()

    def finish(self, upload: str, digest: str) -> None:
        """Turn an upload into the blob with this digest. Raises BlobError."""
        self.known.discard(upload)
        file = self.folder / f"{upload}{SUFFIX}"
        if not DIGEST.fullmatch(digest) or f"sha256:{sha256_of(file)}" != digest:
            file.unlink()
            raise BlobError(f"{digest[:80]} arrived with another sha256")
        rename_durably(file, self.cache.blob(digest))


def body_blocks(body: BufferedIOBase, headers: Message, most: int = 0) -> Iterator[bytes]:
    """Yield the body of a request, also in chunks. `most` bounds its bytes unless it is 0.

    Raises ValueError or BlobError.
    """
    total = 0
    for size in _sizes(body, headers):
        total += size
        if most and total > most:
            raise BlobError(f"the body has more than {most} bytes")
        rest = size
        while rest:
            block = body.read(min(rest, BLOCK_BYTES))
            if not block:
                raise BlobError("the body ended early")
            rest -= len(block)
            yield block


def _sizes(body: BufferedIOBase, headers: Message) -> Iterator[int]:
    """Yield the sizes of the parts of a body: the whole, or each chunk (RFC 9112, section 7.1)."""
    if "chunked" not in (headers.get("Transfer-Encoding") or "").lower():
        yield int(headers.get("Content-Length") or 0)
        return
    while size := int(body.readline(MAX_CHUNK_LINE).partition(b";")[0], 16):
        yield size
        body.readline(MAX_CHUNK_LINE)
    while body.readline(MAX_CHUNK_LINE).strip():
        pass
