"""Copy models from another Spark over the fabric: ranges of files over several HTTP connections. Runs on the host.

The client reads the manifest of the sender, refuses any other than the one that Ansible names, verifies what is on the
disk, and fetches the rest. Chunks that arrived
are kept if the copy is interrupted, and the next run fetches the others. A file is valid if its sha256 matches the
manifest.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from queue import Empty, Queue
from threading import Event, Lock, Thread
from typing import TypedDict
from urllib.parse import quote

from vllm_spark.node.pull import hub_cache
from vllm_spark.node.pull.checksums import ChecksumCache
from vllm_spark.node.pull.files import LinkError
from vllm_spark.node.pull.hub_cache import HubRequest
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestError,
    OtherManifestError,
    Source,
    parse,
    source_of,
)
from vllm_spark.node.pull.partial_file import BLOCK_BYTES, PartialFile
from vllm_spark.node.pull.peer_server import PeerLogin

STREAMS = 8
# A connection without a byte for this long is reopened.
READ_TIMEOUT_S = 10.0
# The copy ends if no connection received a byte for this long.
IDLE_TIMEOUT_S = 60.0
RETRY_S = 0.5
# A file that arrived with a wrong sha256 is fetched once more: the network or the sender damaged it.
ATTEMPTS = 2
# ENOSPC, EDQUOT
DISK_FULL_ERRNOS = {28, 122}
STOPPED = "stopped on request; what has arrived is kept"


class PeerRequest(HubRequest, total=False):
    """Models to copy from one address. Each names the sha256 of its manifest. `token` is the secret of the run, which
    is never sent. `sender` is the name of the host for an operator."""

    sender: str
    address: str
    port: int
    token: str
    streams: int
    idle_timeout_s: float


class PeerResult(TypedDict):
    """Files and bytes that were copied."""

    files: int
    moved: int
    reconnects: int
    seconds: float


class _ConnectionLostError(Exception):
    """A connection that ended before its range was complete."""


@dataclass(slots=True)
class RangeClient:
    """One copy of all missing files from one sender."""

    login: PeerLogin
    progress: JobProgress
    stop: Event
    idle_timeout_s: float = IDLE_TIMEOUT_S
    todo: Queue[tuple[PartialFile, int]] = field(default_factory=Queue)
    checksums: dict[str, ChecksumCache] = field(default_factory=dict)
    failure: JobError | None = None
    last_byte_at: float = field(default_factory=time.monotonic)
    reconnects: int = 0
    moved: int = 0
    unfinished_files: int = 0
    lock: Lock = field(default_factory=Lock)

    @property
    def sender(self) -> tuple[str, int]:
        return self.login.address

    def manifest(self, model: Source) -> Manifest:
        """Return the manifest of a model from the sender. Raises JobError, also for another than the accepted one."""
        if not model.accepted:
            raise JobError("other-manifest", f"the request for {model.folder} does not name the sha256 of its manifest")
        status, body = self.get(f"/{model.folder}/{model.commit}")
        if status != HTTPStatus.OK:
            raise JobError("giver", f"{self.sender[0]} answers {status} for {model.folder} at {model.commit}")
        try:
            return model.accept(parse(body, model.more))
        except OtherManifestError as error:
            raise JobError("other-manifest", f"{self.sender[0]}: {error}") from error
        except ManifestError as error:
            raise JobError("giver", f"{self.sender[0]} sends an {error}") from error

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body. A connection is retried until the idle timeout. Raises JobError."""
        started_at = time.monotonic()
        while True:
            connection = http.client.HTTPConnection(*self.sender, timeout=READ_TIMEOUT_S)
            try:
                connection.request("GET", path, headers=self.login.headers(path))
                response = connection.getresponse()
                return response.status, response.read(MAX_MANIFEST_BYTES)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - started_at > self.idle_timeout_s or self.stop.wait(RETRY_S):
                    detail = f"{self.sender[0]} port {self.sender[1]} does not answer: {error}"
                    raise JobError("link", detail) from error
            finally:
                connection.close()

    def fetch(self, files: list[PartialFile], streams: int) -> None:
        """Fetch all files. Raises JobError; chunks that have arrived by then are kept."""
        self.last_byte_at, self.unfinished_files = time.monotonic(), len(files)
        try:
            for file in files:
                file.open()
        except (JobError, LinkError):
            for file in files:
                file.close()
            raise
        total, done = sum(file.entry.size for file in files), sum(file.complete_bytes() for file in files)
        self.progress.enter("copying", total, done)
        for file in files:
            self._enqueue(file)
        workers = [Thread(target=self._work, daemon=True) for _ in range(streams)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for file in files:
            file.close()
        if self.failure:
            raise self.failure
        if self.stop.is_set():
            raise JobError("stopped", STOPPED)

    def _enqueue(self, file: PartialFile) -> None:
        missing = file.missing_chunks()
        for number in missing:
            self.todo.put((file, number))
        if not missing:
            # An empty file, or one whose chunks had all arrived when the earlier copy was interrupted.
            self.todo.put((file, -1))

    def _work(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._is_over():
            try:
                file, number = self.todo.get(timeout=0.1)
            except Empty:
                continue
            try:
                if number >= 0:
                    connection = self._fetch_chunk(connection, file, number)
                    file.mark_chunk(number)
                if file.update_hash(self.stop):
                    self._finish(file)
            except JobError as error:
                self.failure = self.failure or error
            except LinkError as error:
                self.failure = self.failure or JobError("link-in-hub", str(error))
            except OSError as error:
                reason = "disk-full" if error.errno in DISK_FULL_ERRNOS else "os"
                self.failure = self.failure or JobError(reason, f"{file.entry.path}: {error}")
        if connection:
            connection.close()

    def _is_over(self) -> bool:
        return self.failure is not None or self.stop.is_set() or self.unfinished_files == 0

    def _finish(self, file: PartialFile) -> None:
        if file.finish(self.checksums[file.model.folder]):
            with self.lock:
                self.unfinished_files -= 1
            return
        file.attempts += 1
        if file.attempts >= ATTEMPTS:
            detail = f"{file.entry.path} arrived {ATTEMPTS} times with another sha256 than {file.entry.sha256}"
            raise JobError("corrupt", f"{detail}: the copy on {self.sender[0]} is damaged")
        self.progress.note = f"{file.entry.path} arrived damaged and is fetched again"
        self.progress.add(-file.entry.size)
        file.open()
        self._enqueue(file)

    def _fetch_chunk(
        self, connection: http.client.HTTPConnection | None, file: PartialFile, number: int
    ) -> http.client.HTTPConnection:
        """Fetch one chunk and return the open connection. A lost connection is reopened.

        Raises JobError after the idle timeout, or if the sender refuses the range.
        """
        begin, end = file.chunk_range(number)
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while True:
            at = begin
            try:
                if connection is None:
                    connection = http.client.HTTPConnection(*self.sender, timeout=READ_TIMEOUT_S)
                for size in self._read_range(connection, file, begin, end, buffer):
                    file.write(buffer[:size], at)
                    at += size
                    self._count(size)
                return connection
            except (http.client.HTTPException, _ConnectionLostError) as error:
                if connection:
                    connection.close()
                connection = None
                # The whole range is requested again.
                self.progress.add(begin - at)
                self._note_lost_connection(error)

    def _read_range(
        self, connection: http.client.HTTPConnection, file: PartialFile, begin: int, end: int, buffer: memoryview
    ) -> Iterator[int]:
        """Yield the size of each block that was read into the buffer, until the range is complete."""
        path = f"/{file.model.folder}/{file.model.commit}/{quote(file.entry.path)}"
        try:
            connection.request("GET", path, headers=self.login.headers(path, f"bytes={begin}-{end - 1}"))
            response = connection.getresponse()
        except OSError as error:
            raise _ConnectionLostError(str(error)) from error
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            body = response.read(200).decode(errors="replace")
            raise JobError("giver", f"{self.sender[0]} answers {response.status} for {file.entry.path}: {body}")
        left = end - begin
        while left:
            try:
                size = response.readinto(buffer[: min(BLOCK_BYTES, left)])
            except OSError as error:
                raise _ConnectionLostError(str(error)) from error
            if not size:
                raise _ConnectionLostError(f"{left} bytes are missing")
            left -= size
            yield size

    def _count(self, size: int) -> None:
        with self.lock:
            self.last_byte_at, self.moved = time.monotonic(), self.moved + size
        self.progress.add(size)

    def _note_lost_connection(self, error: Exception) -> None:
        """Wait before the next attempt. Raises JobError after the idle timeout, or if the copy is over."""
        with self.lock:
            self.reconnects += 1
            idle_s = time.monotonic() - self.last_byte_at
        self.progress.note = f"{self.reconnects} connections lost"
        if idle_s > self.idle_timeout_s:
            cause = str(error) or type(error).__name__
            detail = f"nothing from {self.sender[0]} port {self.sender[1]} for {idle_s:.0f} s ({cause})"
            raise JobError("link", f"{detail}; what has arrived is kept") from error
        if self.stop.wait(RETRY_S) or self.failure:
            raise self.failure or JobError("stopped", STOPPED) from error


def fetch_from_peer(request: PeerRequest, progress: JobProgress, stop: Event) -> PeerResult:
    """Copy every model of the request from the sender. Verified files are neither read nor copied. Raises JobError."""
    client = RangeClient(PeerLogin((request["address"], request["port"]), request["token"]), progress, stop)
    client.idle_timeout_s = float(request.get("idle_timeout_s", IDLE_TIMEOUT_S))
    started_at = time.monotonic()
    files: list[PartialFile] = []
    models: list[tuple[Source, Manifest]] = []
    for ref in request["sources"]:
        model = source_of(request["hub"], ref)
        manifest = client.manifest(model)
        progress.enter("checking", manifest.size)
        verify = bool(request.get("verify"))
        bad = hub_cache.remove_bad_files(model, manifest, verify=verify, on_read=progress.add, stop=stop)
        model.write_manifest(manifest)
        client.checksums.setdefault(model.folder, ChecksumCache.load(model.root))
        files += [PartialFile(model, entry) for entry in bad]
        models.append((model, manifest))
    # Two files of one model may share a blob, which is fetched once.
    files = list({file.file: file for file in files}.values())
    if files:
        try:
            client.fetch(files, int(request.get("streams", STREAMS)))
        finally:
            for checksums in client.checksums.values():
                checksums.save()
    for model, manifest in models:
        for entry in manifest.files:
            hub_cache.link_existing_blob(model, entry)
    seconds = round(time.monotonic() - started_at, 2)
    return {"files": len(files), "moved": client.moved, "reconnects": client.reconnects, "seconds": seconds}
