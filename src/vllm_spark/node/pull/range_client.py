"""Copy models from another Spark over the fabric: ranges of files over several HTTP connections. Runs on the host.

The client reads the manifest of the sender, refuses any other than the one that Ansible names, verifies what is on the
disk, and fetches the rest. Chunks that arrived are kept if the copy is interrupted, and the next run fetches the
others. A file is valid if its sha256 matches the manifest.
"""

from __future__ import annotations

import http.client
import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http import HTTPStatus
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from urllib.parse import quote

from vllm_spark.node.host_job import JobEndedError
from vllm_spark.node.pull import hub_cache
from vllm_spark.node.pull.checksums import ChecksumCache
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

# Each connection has a thread, which also computes sha256. More cores can therefore use more connections.
STREAMS = min(16, max(8, os.cpu_count() or 1))
# A connection without a byte for this long is reopened.
READ_TIMEOUT_S = 10.0
# The copy ends if no connection received a byte for this long.
IDLE_TIMEOUT_S = 60.0
RETRY_S = 0.5
# A file that arrived with a wrong sha256 is fetched once more: the network or the sender damaged it.
ATTEMPTS = 2
STOPPED = "stopped on request; what has arrived is kept"


class PeerRequest(HubRequest, total=False):
    """Models to copy from one address. Each names the sha256 of its manifest. `token` is the secret of the run, which
    is never sent. `sender` is the name of the host for an operator. `streams` is the number of connections, 0 for
    STREAMS."""

    sender: str
    address: str
    port: int
    token: str
    streams: int
    idle_timeout_s: float


@dataclass(slots=True)
class RangeClient:
    """One copy of all missing files from one sender."""

    login: PeerLogin
    progress: JobProgress
    stop: Event
    idle_timeout_s: float = IDLE_TIMEOUT_S
    todo: SimpleQueue[tuple[PartialFile, int]] = field(default_factory=SimpleQueue)
    checksums: dict[str, ChecksumCache] = field(default_factory=dict)
    failure: Exception | None = None
    last_byte_at: float = field(default_factory=time.monotonic)
    reconnects: int = 0
    moved: int = 0
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
        """Return status and body. Raises JobError after the idle timeout."""
        self.last_byte_at = time.monotonic()
        while True:
            try:
                with closing(http.client.HTTPConnection(*self.sender, timeout=READ_TIMEOUT_S)) as connection:
                    connection.request("GET", path, headers=self.login.headers(path))
                    response = connection.getresponse()
                    return response.status, response.read(MAX_MANIFEST_BYTES)
            except (OSError, http.client.HTTPException) as error:
                self._wait_after(error)

    def fetch(self, files: list[PartialFile], streams: int) -> None:
        """Fetch all files. Raises JobEndedError; chunks that have arrived by then are kept."""
        for _ in range(ATTEMPTS):
            damaged = self._fetch_once(files, streams)
            if not damaged:
                return
            self.progress.note = f"{damaged[0].entry.path} arrived damaged and is fetched again"
            files = damaged
        detail = f"{files[0].entry.path} arrived {ATTEMPTS} times with another sha256 than {files[0].entry.sha256}"
        raise JobError("corrupt", f"{detail}: the copy on {self.sender[0]} is damaged")

    def _fetch_once(self, files: list[PartialFile], streams: int) -> list[PartialFile]:
        """Return the files that arrived damaged, and were deleted."""
        damaged: list[PartialFile] = []
        with ExitStack() as opened:
            for file in files:
                opened.callback(file.close)
                file.open()
                # -1: an empty file, or one whose chunks had all arrived when the earlier copy was interrupted.
                for number in file.missing_chunks() or [-1]:
                    self.todo.put((file, number))
            self.progress.enter(
                "copying", sum(file.entry.size for file in files), sum(file.complete_bytes() for file in files)
            )
            self.last_byte_at = time.monotonic()
            workers = [Thread(target=self._work, args=(damaged,), daemon=True) for _ in range(streams)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if self.failure or self.stop.is_set():
            raise self.failure or JobError("stopped", STOPPED)
        return damaged

    def _work(self, damaged: list[PartialFile]) -> None:
        """Fetch chunks over one connection until none is left, and finish the files that they complete."""
        with closing(http.client.HTTPConnection(*self.sender, timeout=READ_TIMEOUT_S)) as connection:
            while not self.failure and not self.stop.is_set():
                try:
                    file, number = self.todo.get_nowait()
                except Empty:
                    return
                try:
                    if number >= 0:
                        self._fetch_chunk(connection, file, number)
                        file.mark_chunk(number)
                    if file.update_hash(self.stop) and not file.finish(self.checksums[file.model.folder]):
                        damaged.append(file)
                except JobEndedError as error:
                    self.failure = self.failure or error
                except OSError as error:
                    self.failure = self.failure or file.fault(error)

    def _fetch_chunk(self, connection: http.client.HTTPConnection, file: PartialFile, number: int) -> None:
        """Fetch one chunk. After a lost connection the rest is requested over a new one.

        Raises JobError after the idle timeout, or if the sender refuses the range.
        """
        path = f"/{file.model.folder}/{file.model.commit}/{quote(file.entry.path)}"
        buffer = memoryview(bytearray(BLOCK_BYTES))
        at, end = file.chunk_range(number)
        while at < end:
            try:
                connection.request("GET", path, headers=self.login.headers(path, f"bytes={at}-{end - 1}"))
                response = connection.getresponse()
                if response.status != HTTPStatus.PARTIAL_CONTENT:
                    body = response.read(200).decode(errors="replace")
                    raise JobError("giver", f"{self.sender[0]} answers {response.status} for {file.entry.path}: {body}")
                while at < end:
                    size = response.readinto(buffer[: min(BLOCK_BYTES, end - at)])
                    if not size:
                        raise ConnectionError(f"{end - at} bytes are missing")
                    file.write(buffer[:size], at)
                    at += size
                    self._count(size)
            except (OSError, http.client.HTTPException) as error:
                # The next request opens it again.
                connection.close()
                self._wait_after(error)

    def _count(self, size: int) -> None:
        with self.lock:
            self.last_byte_at, self.moved = time.monotonic(), self.moved + size
        self.progress.add(size)

    def _wait_after(self, error: Exception) -> None:
        """Wait after a lost connection. Raises JobEndedError after the idle timeout, or if the copy is over."""
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


def fetch_from_peer(request: PeerRequest, progress: JobProgress, stop: Event) -> dict[str, float]:
    """Copy every model of the request from the sender. Verified files are neither read nor copied. Raises JobError.

    Returns the number of `files` copied, the bytes `moved`, `reconnects` and `seconds`.
    """
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
            streams = int(request.get("streams", 0))
            client.fetch(files, streams if streams > 0 else STREAMS)
        finally:
            for checksums in client.checksums.values():
                checksums.save()
    for model, manifest in models:
        for entry in manifest.files:
            hub_cache.link_existing_blob(model, entry)
    seconds = round(time.monotonic() - started_at, 2)
    return {"files": len(files), "moved": client.moved, "reconnects": client.reconnects, "seconds": seconds}
