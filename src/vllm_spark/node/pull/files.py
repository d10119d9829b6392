"""Files of a transfer: JSON, checksums of whole files, folders without links. Runs on the host."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from vllm_spark.node.host_job import JobEndedError
from vllm_spark.node.state_file import replace_file, sync

READ_BLOCK_BYTES = 4 << 20


class StoppedError(JobEndedError):
    """Cancelled by the caller. Files not read completely are neither valid nor invalid."""

    reason = "stopped"


class LinkError(JobEndedError):
    """A link where a folder or a file is expected. Root follows no link in a folder that a user may write."""

    reason = "link-in-hub"


@contextmanager
def pinned_folder(base: Path, *names: str, create: bool = False) -> Iterator[Path]:
    """Yield the folder `names` below `base` as a path through an open descriptor, so that nobody can replace it.

    `base` is a setting of the operator and may be a link; a link below it raises LinkError. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if create:
        base.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(base, flags)
    try:
        at = base
        for name in names:
            at = at / name
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=descriptor)
            below = _open_below(descriptor, name, flags, at)
            os.close(descriptor)
            descriptor = below
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _open_below(descriptor: int, name: str, flags: int, path: Path) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise LinkError(f"{path} is a link or not a folder") from error
        raise


def open_plain(path: Path, flags: int, name: str) -> int:
    """Open a file in a pinned folder. Raises LinkError for a link, a file with a second name, or a special file."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise LinkError(f"{name} is a link or not a file") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise LinkError(f"{name} has {status.st_nlink} names (hard links) or is not a file")
    return descriptor


def write_json(file: Path, document: object, *, durable: bool = True) -> None:
    """Replace a JSON file atomically (replace_file)."""
    replace_file(file, json.dumps(document, indent=1, sort_keys=True) + "\n", durable=durable)


def rename_durably(file: Path, target: Path) -> None:
    """Rename a complete file in its folder, so that `target` is whole or absent after a loss of power."""
    sync(file)
    file.replace(target)
    sync(target.parent)


def sha256_of(file: Path | int, on_read: Callable[[int], None] | None = None, stop: Event | None = None) -> str:
    """Return the hex sha256 of a file or of an open descriptor, which is closed. `on_read` receives block sizes.

    The pages leave the page cache, because the memory of a Spark belongs to its model. Raises StoppedError.
    """
    digest, block = hashlib.sha256(), memoryview(bytearray(READ_BLOCK_BYTES))
    with open(file, "rb", buffering=0) as opened:
        while size := opened.readinto(block):
            digest.update(block[:size])
            if on_read:
                on_read(size)
            if stop and stop.is_set():
                raise StoppedError("stopped on request")
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def git_sha1(content: bytes) -> str:
    """Return git's blob hash, the id of a small file on the hub."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
