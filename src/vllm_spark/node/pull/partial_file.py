"""A file that is being copied in chunks. It survives an interrupted copy. Runs on the host.

Its sha256 is computed while chunks arrive, so little is left to read after the last chunk of a large file.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

from vllm_spark.node.host_job import reason_of
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.files import open_plain, write_json
from vllm_spark.node.pull.job import JobError
from vllm_spark.node.pull.model_files import PART, PARTS, FileEntry, Source

if TYPE_CHECKING:
    from hashlib import _Hash

# Small enough that all connections share one large file, large enough that the cost of a request is negligible.
CHUNK_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class PartialFile:
    """A file of `model`: its complete chunks, and the sha256 of the first `hashed` chunks."""

    model: Source
    entry: FileEntry
    descriptor: int = -1
    chunks: set[int] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)
    digest: _Hash = field(default_factory=hashlib.sha256)
    hashed: int = 0
    hashing: bool = False

    @property
    def file(self) -> Path:
        return self.model.blob(self.entry).with_name(f"{self.entry.blob}{PART}")

    @property
    def chunk_list(self) -> str:
        """The name of the file that records the complete chunks."""
        return f"{self.entry.blob}{PARTS}"

    @property
    def chunk_count(self) -> int:
        return -(-self.entry.size // CHUNK_BYTES)

    def open(self) -> None:
        """Reuse the chunks of an earlier copy and allocate the whole file.

        The allocation comes first, so a full disk is reported before the transfer. Raises JobError.
        """
        with self.model.pinned("blobs", create=True) as folder:
            with suppress(OSError, ValueError, TypeError, RecursionError):
                earlier = json.loads((folder / self.chunk_list).read_text(encoding="utf-8"))
                if (
                    self._key().items() <= earlier.items()
                    and (folder / self.file.name).stat().st_size == self.entry.size
                ):
                    self.chunks = {number for number in earlier["chunks"] if 0 <= number < self.chunk_count}
            self.descriptor = open_plain(folder / self.file.name, os.O_RDWR | os.O_CREAT, str(self.file))
        if self.entry.size:
            try:
                os.posix_fallocate(self.descriptor, 0, self.entry.size)
            except OSError as error:
                if not self.chunks:
                    self.delete()
                raise JobError("disk-full", f"{self.entry.path} needs {self.entry.size} bytes: {error}") from error
        os.ftruncate(self.descriptor, self.entry.size)

    def _key(self) -> dict[str, object]:
        """Return the identity of the file. Chunks of another one are not reused."""
        return {"sha256": self.entry.sha256, "size": self.entry.size, "chunk": CHUNK_BYTES}

    def mark_chunk(self, number: int) -> None:
        """Record a chunk as complete."""
        with self.lock:
            self.chunks.add(number)
            with self.model.pinned("blobs") as folder:
                # Not durable: a list that is lost costs a second transfer, and a file is hashed as a whole at its end.
                chunks = {**self._key(), "chunks": sorted(self.chunks)}
                write_json(folder / self.chunk_list, chunks, durable=False)

    def update_hash(self, stop: Event) -> bool:
        """Hash the complete chunks that follow the hashed ones. Return True if that completed the file.

        Only one thread hashes at a time; any other thread returns False at once. True is returned only once.
        """
        with self.lock:
            if self.hashing:
                return False
            self.hashing = True
        while not stop.is_set():
            with self.lock:
                if self.hashed == self.chunk_count:
                    return True  # `hashing` stays set, so no other thread finishes the file too
                if self.hashed not in self.chunks:
                    self.hashing = False
                    return False
            begin, end = self.chunk_range(self.hashed)
            self._hash_range(begin, end)
            # The disk begins to write these bytes, and fsync finds little to write at the end.
            os.posix_fadvise(self.descriptor, begin, end - begin, os.POSIX_FADV_DONTNEED)
            self.hashed += 1
        return False

    def _hash_range(self, begin: int, end: int) -> None:
        block = memoryview(bytearray(BLOCK_BYTES))
        while begin < end:
            size = os.preadv(self.descriptor, [block[: min(BLOCK_BYTES, end - begin)]], begin)
            if not size:
                raise OSError(f"{self.file} became shorter")
            self.digest.update(block[:size])
            begin += size

    def chunk_range(self, number: int) -> tuple[int, int]:
        """Return the first byte of a chunk, and the byte after its last."""
        return number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, self.entry.size)

    def missing_chunks(self) -> list[int]:
        return [number for number in range(self.chunk_count) if number not in self.chunks]

    def complete_bytes(self) -> int:
        return sum(end - begin for begin, end in map(self.chunk_range, self.chunks))

    def write(self, data: memoryview, at: int) -> None:
        """Write all of `data` at byte `at`. Raises JobError."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self.descriptor, data[written:], at + written)
        except OSError as error:
            raise self.fault(error) from error

    def fault(self, error: OSError) -> JobError:
        """Return the error of the job if the disk fails."""
        return JobError(reason_of(error), f"{self.entry.path}: {error}")

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def delete(self) -> None:
        self.close()
        with self.model.pinned("blobs") as folder:
            (folder / self.file.name).unlink(missing_ok=True)
            (folder / self.chunk_list).unlink(missing_ok=True)
        self.chunks, self.digest, self.hashed, self.hashing = set(), hashlib.sha256(), 0, False

    def finish(self, checksums: ChecksumCache) -> bool:
        """Turn the file into a blob that the snapshot links to. Return False, and delete it, if its sha256 is wrong."""
        if self.digest.hexdigest() != self.entry.sha256:
            self.delete()
            return False
        os.fsync(self.descriptor)
        # The memory of a Spark belongs to its model.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()
        blob = self.model.blob(self.entry)
        with self.model.pinned("blobs") as folder:
            (folder / self.file.name).replace(folder / blob.name)
            (folder / self.chunk_list).unlink(missing_ok=True)
        self.model.link(self.entry)
        checksums.set(blob, self.entry.sha256)
        return True
