"""Make files of the hub cache's shared store a model's own. Runs on the host.

`hf download` leaves links into the store (node/shared_blobs.py), as pulls did with huggingface_hub 1.32.0 and later. A
file counts by its sha256, not by its name. It is moved into the model's folder, so it keeps the one name that a file of
a model may have. It is copied if another model links to it or another process uses it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

from vllm_spark.node import shared_blobs
from vllm_spark.node.host_job import reason_of
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.files import READ_BLOCK_BYTES, LinkError, pinned_folder, sha256_of
from vllm_spark.node.pull.job import JobError
from vllm_spark.node.pull.model_files import PART, FileEntry, Source

# hashlib releases the GIL, so threads are as fast as processes. More than a Spark's fast cores gain nothing.
READERS = 8


def adopt(
    model: Source,
    entries: Collection[FileEntry],
    checksums: ChecksumCache,
    on_read: Callable[[int], None] | None = None,
    stop: Event | None = None,
) -> None:
    """Make each file of the store that is one of the entries the blob of this entry. Files of other content stay.

    The stamps of the adopted files are saved. `on_read` receives the size of each block. Raises JobError if the disk is
    full, and StoppedError.
    """
    if not shared_blobs.is_store(model.hub / shared_blobs.STORE):
        return
    # A blob whose link is gone is found by them.
    written = shared_blobs.references(model.hub)

    def take(entry: FileEntry) -> bool:
        with suppress(OSError, LinkError):
            os.close(model.open(entry))
            return False
        name = f"{model.folder}/{shared_blobs.STORE}/{entry.blob}"
        for linked in sorted({shared_blobs.hash_of(model.blob(entry)), *written.get(name, ())} - {""}):
            if _take(model, entry, (linked, name), on_read, stop):
                checksums.set(model.blob(entry), entry.sha256)
                return True
        return False

    # Two paths of a model may have one blob.
    wanted = {entry.blob: entry for entry in entries if entry.sha256}
    with ThreadPoolExecutor(READERS) as pool:
        if any(list(pool.map(take, wanted.values()))):
            checksums.save()


def _take(
    model: Source, entry: FileEntry, place: tuple[str, str], on_read: Callable[[int], None] | None, stop: Event | None
) -> bool:
    """Move or copy a file of the store. `place` is its HASH, and the name that a link to it has in the cache. Return
    False if there is none, or if its content is not that of the entry."""
    linked, name = place
    try:
        with pinned_folder(model.hub, shared_blobs.STORE, linked[:2]) as folder:
            descriptor = os.open(folder / linked, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb", buffering=0) as file, model.pinned("blobs", create=True) as blobs:
                read = os.fstat(descriptor)
                right = stat.S_ISREG(read.st_mode) and read.st_size == entry.size
                if not right or sha256_of(os.dup(descriptor), on_read, stop) != entry.sha256:
                    return False
                part = blobs / f"{entry.blob}{PART}"
                if not _move(model.hub, (folder / linked, read), blobs / entry.blob, name):
                    file.seek(0)
                    _copy(descriptor, part)
                    part.replace(blobs / entry.blob)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JobError(reason_of(error), f"{entry.path}: {error}") from error
    return True


def _move(hub: Path, source: tuple[Path, os.stat_result], blob: Path, name: str) -> bool:
    """Return False if something else uses the file, if it changed since it was read, or if it is on another disk."""
    file, read = source
    with shared_blobs.locked(file) as alone, suppress(OSError):
        now = file.lstat()
        same = (now.st_ino, now.st_mtime_ns, now.st_nlink) == (read.st_ino, read.st_mtime_ns, 1)
        if alone and same and not shared_blobs.links(hub).get(file.name, set()) - {name}:
            file.replace(blob)
            Path(f"{file}{shared_blobs.REFS}").unlink(missing_ok=True)
            return True
    return False


def _copy(descriptor: int, part: Path) -> None:
    """Copy an open file. What a full disk leaves of it is deleted. Raises OSError."""
    part.unlink(missing_ok=True)
    try:
        with open(descriptor, "rb", closefd=False) as source, open(part, "xb") as target:
            shutil.copyfileobj(source, target, READ_BLOCK_BYTES)
            target.flush()
            os.fsync(target.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise
