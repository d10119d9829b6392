"""Files of a transfer: atomic JSON, checksums of whole files. Runs on the host."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event

READ_BLOCK_BYTES = 4 << 20


class StoppedError(Exception):
    """Cancelled by the caller. Files not read completely are neither valid nor invalid."""


def write_json(file: Path, document: object) -> None:
    """Replace a JSON file atomically: a reader sees the old or the new content, never a part."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".vllm-spark-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            json.dump(document, opened, indent=1, sort_keys=True)
            opened.write("\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sha256_of(path: Path, on_read: Callable[[int], None] | None = None, stop: Event | None = None) -> str:
    """Return the hex sha256 of a file. `on_read` receives the size of each block.

    The pages leave the page cache, because the memory of a Spark belongs to its model. Raises StoppedError.
    """
    digest, block = hashlib.sha256(), memoryview(bytearray(READ_BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
            if on_read:
                on_read(size)
            if stop and stop.is_set():
                raise StoppedError("stopped on request")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def git_sha1(content: bytes) -> str:
    """Return git's blob hash, the id of a small file on the hub."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
