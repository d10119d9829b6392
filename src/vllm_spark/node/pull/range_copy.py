"""Weights from one Spark to another over their fabric: ranges of files over HTTP, many at a time. Runs on both.

The giver serves the files of named models to whoever has the token of this one transfer, and ends by itself. The taker
asks for the manifest, proves what it has, and fetches the rest in ranges over several connections; what has arrived is
kept when a transfer is cut, and the next one asks for the rest alone. A file counts when its sha256 is the manifest's;
the sum follows what arrives, so that the last range of a large shard has little left to be read after it.

    python3 -m vllm_spark.node.pull.range_copy serve|take|check
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import quote, unquote

from vllm_spark.node.pull import hub_cache, job
from vllm_spark.node.pull.hub_cache import ChecksumCache, Entry, Manifest, ManifestError, Source
from vllm_spark.node.pull.job import JobError, JobProgress

# Small enough to share one large shard between all connections, large enough that a question costs nothing.
CHUNK = 64 << 20
BLOCK = 1 << 20
STREAMS = 8
# Without a byte for so long, a connection is opened anew; without one on any of them, the transfer ends.
READ_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
RETRY_S = 0.5
# A giver that nobody asks has been forgotten by a run that was killed.
IDLE_S = 900.0
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
# A file that arrived whole with another sha256 is fetched once more: the network's fault or the giver's.
ATTEMPTS = 2
STOPPED = "it was told to end; what has arrived is kept"


class RangeServer(ThreadingHTTPServer):
    """Serves the files of these models, read-only."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], token: str, models: Mapping[str, tuple[Source, Manifest]]) -> None:
        self.token, self.asked_at, self.sent = token, time.monotonic(), 0
        self.manifests = {path: manifest for path, (_, manifest) in models.items()}
        self.files: dict[str, Path] = {
            f"{path}/{entry.path}": model.file(entry)
            for path, (model, manifest) in models.items()
            for entry in manifest.files
        }
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer
    # A taker that is gone must not hold a thread for ever.
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        self.server.asked_at = time.monotonic()
        given = self.headers.get("Authorization", "")
        path = unquote(self.path.lstrip("/"))
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return self._say(HTTPStatus.UNAUTHORIZED, b"")
        if path in self.server.manifests:
            return self._say(HTTPStatus.OK, json.dumps(self.server.manifests[path].to_json()).encode())
        if path not in self.server.files:
            return self._say(HTTPStatus.NOT_FOUND, b"")
        return self._file(self.server.files[path])

    def _file(self, path: Path) -> None:
        try:
            file = path.open("rb")
        except OSError as error:
            return self._say(HTTPStatus.GONE, str(error).encode())
        with file:
            size = os.fstat(file.fileno()).st_size
            asked = RANGE.fullmatch(self.headers.get("Range", ""))
            begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, size)
            if not 0 <= begin < end <= size:
                return self._say(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"it has {size} bytes".encode())
            self.send_response(HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            self.wfile.flush()
            while begin < end:
                # The kernel copies from the page cache to the socket; Python sees no byte.
                sent = self.connection.sendfile(file, begin, min(CHUNK, end - begin))
                if not sent:
                    # The file became shorter under us: an honest end is a cut one.
                    self.close_connection = True
                    return None
                begin += sent
                self.server.sent += sent
                self.server.asked_at = time.monotonic()
            return None

    def _say(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        # A taker that ends, or a cable that is pulled, is no news here: the taker says so.
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """The result says what was sent."""


def serve(request: Mapping[str, Any], progress: JobProgress, stop: Event) -> Mapping[str, Any]:
    """Give until told to end, or until nobody has asked for IDLE_S."""
    models = {}
    for document in request["sources"]:
        model = hub_cache.source(request["hub"], document)
        manifest = model.manifest()
        if manifest is None:
            raise JobError("no-manifest", f"{model.manifest_file} does not exist")
        models[f"{model.folder}/{model.commit}"] = (model, manifest)
    with RangeServer((request["address"], request["port"]), request["token"], models) as giver:
        progress.enter("serving", 0)
        Thread(target=giver.serve_forever, args=(0.2,), daemon=True).start()
        while not stop.wait(0.2) and time.monotonic() - giver.asked_at < float(request.get("idle_s", IDLE_S)):
            progress.done = giver.sent
        giver.shutdown()
        return {"sent": giver.sent}


@dataclass(slots=True)
class PartialFile:
    """A file on its way: which of its chunks are here, where they are kept, and how far its sum has come."""

    model: Source
    entry: Entry
    descriptor: int = -1
    chunks: set[int] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)
    attempts: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    summed: int = 0
    summing: bool = False

    @property
    def file(self) -> Path:
        return self.model.blob(self.entry).with_name(f"{self.entry.blob}{hub_cache.PART}")

    @property
    def notes(self) -> Path:
        return self.model.blob(self.entry).with_name(f"{self.entry.blob}{hub_cache.PARTS}")

    @property
    def count(self) -> int:
        return -(-self.entry.size // CHUNK)

    def open(self) -> None:
        """Take over what an earlier transfer has left. Takes the room on the disk first: a full disk is said before
        an hour has passed."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError, ValueError, TypeError):
            kept = json.loads(self.notes.read_text(encoding="utf-8"))
            if self._what().items() <= kept.items() and self.file.stat().st_size == self.entry.size:
                self.chunks = {number for number in kept["chunks"] if 0 <= number < self.count}
        self.descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self.entry.size:
            try:
                os.posix_fallocate(self.descriptor, 0, self.entry.size)
            except OSError as error:
                if not self.chunks:
                    self.drop()
                raise JobError("disk-full", f"{self.entry.path} needs {self.entry.size} bytes: {error}") from error
        os.ftruncate(self.descriptor, self.entry.size)

    def arrived(self, number: int) -> None:
        """Note a chunk."""
        with self.lock:
            self.chunks.add(number)
            hub_cache.place(self.notes, self._what() | {"chunks": sorted(self.chunks)})

    def _what(self) -> dict[str, Any]:
        """Of which file, cut how, the chunks are."""
        return {"sha256": self.entry.sha256, "size": self.entry.size, "chunk": CHUNK}

    def sum_up(self, stop: Event) -> bool:
        """Add to the sum all that follows on what is in it; is it the whole file's now? One thread at a time: whoever
        finds another at it goes on copying, and is told no."""
        with self.lock:
            if self.summing:
                return False
            self.summing = True
        while not stop.is_set():
            with self.lock:
                if self.summed == self.count:
                    return True  # nobody comes after, for `summing` stays
                if self.summed not in self.chunks:
                    self.summing = False
                    return False
            self._sum(*self.span(self.summed))
            self.summed += 1
        return False

    def _sum(self, begin: int, end: int) -> None:
        block = memoryview(bytearray(BLOCK))
        while begin < end:
            size = os.preadv(self.descriptor, [block[: min(BLOCK, end - begin)]], begin)
            if not size:
                raise OSError(f"{self.file} became shorter")
            self.digest.update(block[:size])
            begin += size

    def span(self, number: int) -> tuple[int, int]:
        """Of a chunk: first byte, and the one after its last."""
        return number * CHUNK, min((number + 1) * CHUNK, self.entry.size)

    def missing(self) -> list[int]:
        return [number for number in range(self.count) if number not in self.chunks]

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def drop(self) -> None:
        self.close()
        self.file.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)
        self.chunks, self.digest, self.summed, self.summing = set(), hashlib.sha256(), 0, False

    def finish(self, stamps: ChecksumCache) -> bool:
        """Is it what the manifest says? Then it is a blob, and the snapshot shows it."""
        if self.digest.hexdigest() != self.entry.sha256:
            self.drop()
            return False
        os.fsync(self.descriptor)
        # A Spark's memory is its model's.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()
        blob = self.model.blob(self.entry)
        self.file.replace(blob)
        self.notes.unlink(missing_ok=True)
        self.model.link(self.entry)
        stamps.set(blob, self.entry.sha256)
        return True


@dataclass(slots=True)
class RangeClient:
    """One transfer of all that is missing."""

    giver: tuple[str, int]
    token: str
    progress: JobProgress
    stop: Event
    patience_s: float = IDLE_TIMEOUT_S
    todo: Queue[tuple[PartialFile, int]] = field(default_factory=Queue)
    stamps: dict[str, ChecksumCache] = field(default_factory=dict)
    failure: JobError | None = None
    last_byte: float = field(default_factory=time.monotonic)
    reconnects: int = 0
    moved: int = 0
    open_parts: int = 0
    lock: Lock = field(default_factory=Lock)

    def manifest(self, model: Source) -> Manifest:
        """What the giver says the model is. Raises JobError."""
        status, body = self._small(f"/{model.folder}/{model.commit}")
        if status != HTTPStatus.OK:
            raise JobError("giver", f"{self.giver[0]} answers {status} for {model.folder} at {model.commit}")
        try:
            found = hub_cache.parse(json.loads(body))
        except (ValueError, ManifestError) as error:
            raise JobError("giver", f"{self.giver[0]} sends no manifest: {error}") from error
        if found.commit != model.commit:
            raise JobError("giver", f"{self.giver[0]} sends the manifest of {found.commit}")
        return found

    def _small(self, path: str) -> tuple[int, bytes]:
        begun = time.monotonic()
        while True:
            connection = http.client.HTTPConnection(*self.giver, timeout=READ_TIMEOUT_S)
            try:
                connection.request("GET", path, headers=self._headers())
                reply = connection.getresponse()
                return reply.status, reply.read()
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - begun > self.patience_s or self.stop.wait(RETRY_S):
                    raise JobError("link", f"{self.giver[0]} port {self.giver[1]} does not answer: {error}") from error
            finally:
                connection.close()

    def fetch(self, parts: list[PartialFile], streams: int) -> None:
        """All of the parts. Raises JobError; what has arrived by then is kept."""
        self.last_byte, self.open_parts = time.monotonic(), len(parts)
        try:
            for part in parts:
                part.open()
        except JobError:
            for part in parts:
                part.close()
            raise
        self.progress.enter("copying", sum(p.entry.size for p in parts), sum(_here(p) for p in parts))
        for part in parts:
            self._queue(part)
        workers = [Thread(target=self._work, daemon=True) for _ in range(streams)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for part in parts:
            part.close()
        if self.failure:
            raise self.failure
        if self.stop.is_set():
            raise JobError("stopped", STOPPED)

    def _queue(self, part: PartialFile) -> None:
        missing = part.missing()
        for number in missing:
            self.todo.put((part, number))
        if not missing:
            # Empty, or all of it was here when the transfer before was cut.
            self.todo.put((part, -1))

    def _work(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._over():
            try:
                part, number = self.todo.get(timeout=0.1)
            except Empty:
                continue
            try:
                if number >= 0:
                    connection = self._chunk(connection, part, number)
                    part.arrived(number)
                if part.sum_up(self.stop):
                    self._finish(part)
            except JobError as error:
                self.failure = self.failure or error
            except OSError as error:
                full = "disk-full" if error.errno in {28, 122} else "os"
                self.failure = self.failure or JobError(full, f"{part.entry.path}: {error}")
        if connection:
            connection.close()

    def _over(self) -> bool:
        return self.failure is not None or self.stop.is_set() or self.open_parts == 0

    def _finish(self, part: PartialFile) -> None:
        if part.finish(self.stamps[part.model.folder]):
            with self.lock:
                self.open_parts -= 1
            return
        part.attempts += 1
        if part.attempts >= ATTEMPTS:
            said = f"{part.entry.path} arrived {ATTEMPTS} times with another sha256 than {part.entry.sha256}"
            raise JobError("corrupt", f"{said}: the copy on {self.giver[0]} is bad")
        self.progress.note = f"{part.entry.path} arrived corrupt, again"
        self.progress.add(-part.entry.size)
        part.open()
        self._queue(part)

    def _chunk(
        self, connection: http.client.HTTPConnection | None, part: PartialFile, number: int
    ) -> http.client.HTTPConnection:
        """One range, on a connection that is opened anew where the last one was cut. Raises JobError when the giver is
        silent for too long, or says no."""
        begin, end = part.span(number)
        buffer = memoryview(bytearray(BLOCK))
        while True:
            at = begin
            try:
                if connection is None:
                    connection = http.client.HTTPConnection(*self.giver, timeout=READ_TIMEOUT_S)
                for size in self._range(connection, part, begin, end, buffer):
                    written = 0
                    while written < size:
                        written += os.pwrite(part.descriptor, buffer[written:size], at + written)
                    at += size
                    self._seen(size)
                return connection
            except (http.client.HTTPException, _LinkError) as error:
                if connection:
                    connection.close()
                connection = None
                # What came of this range is asked for again.
                self.progress.add(begin - at)
                self._lost(error)

    def _range(
        self, connection: http.client.HTTPConnection, part: PartialFile, begin: int, end: int, buffer: memoryview
    ) -> Iterator[int]:
        """Sizes of what is in the buffer, until the range is whole."""
        path = f"/{part.model.folder}/{part.model.commit}/{quote(part.entry.path)}"
        try:
            connection.request("GET", path, headers=self._headers() | {"Range": f"bytes={begin}-{end - 1}"})
            reply = connection.getresponse()
        except OSError as error:
            raise _LinkError(str(error)) from error
        if reply.status != HTTPStatus.PARTIAL_CONTENT:
            said = reply.read(200).decode(errors="replace")
            raise JobError("giver", f"{self.giver[0]} answers {reply.status} for {part.entry.path}: {said}")
        left = end - begin
        while left:
            try:
                size = reply.readinto(buffer[: min(BLOCK, left)])
            except OSError as error:
                raise _LinkError(str(error)) from error
            if not size:
                raise _LinkError(f"{left} bytes short")
            left -= size
            yield size

    def _seen(self, size: int) -> None:
        with self.lock:
            self.last_byte, self.moved = time.monotonic(), self.moved + size
        self.progress.add(size)

    def _lost(self, error: Exception) -> None:
        with self.lock:
            self.reconnects += 1
            silent = time.monotonic() - self.last_byte
        self.progress.note = f"{self.reconnects} connections lost"
        if silent > self.patience_s:
            why = str(error) or type(error).__name__
            said = f"nothing from {self.giver[0]} port {self.giver[1]} for {silent:.0f} s ({why})"
            raise JobError("link", f"{said}; what has arrived is kept") from error
        if self.stop.wait(RETRY_S) or self.failure:
            raise self.failure or JobError("stopped", STOPPED) from error

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


class _LinkError(Exception):
    """A connection that ended before its range did."""


def _here(part: PartialFile) -> int:
    return sum(end - begin for begin, end in (part.span(number) for number in part.chunks))


def fetch_from_peer(request: Mapping[str, Any], progress: JobProgress, stop: Event) -> Mapping[str, Any]:
    """Have every model of the request as the giver has it. What is proven already is neither read nor moved."""
    taker = RangeClient((request["address"], request["port"]), request["token"], progress, stop)
    taker.patience_s = float(request.get("patience_s", IDLE_TIMEOUT_S))
    begun = time.monotonic()
    parts: list[PartialFile] = []
    models: list[tuple[Source, Manifest]] = []
    for document in request["sources"]:
        model = hub_cache.source(request["hub"], document)
        manifest = taker.manifest(model)
        progress.enter("checking", manifest.size)
        bad = hub_cache.check(model, manifest, verify=bool(request.get("verify")), read=progress.add, stop=stop)
        model.write(manifest)
        taker.stamps.setdefault(model.folder, ChecksumCache.of(model.root))
        parts += [PartialFile(model, entry) for entry in bad]
        models.append((model, manifest))
    # Two files of one model may be one blob, which comes once.
    parts = list({part.file: part for part in parts}.values())
    if parts:
        try:
            taker.fetch(parts, int(request.get("streams", STREAMS)))
        finally:
            for stamps in taker.stamps.values():
                stamps.save()
    for model, manifest in models:
        for entry in manifest.files:
            hub_cache.link_existing_blob(model, entry)
    seconds = round(time.monotonic() - begun, 2)
    return {"files": len(parts), "moved": taker.moved, "reconnects": taker.reconnects, "seconds": seconds}


def check(request: Mapping[str, Any], progress: JobProgress, stop: Event) -> Mapping[str, Any]:
    """Prove what is here against its manifests; what is not right is taken away and named."""
    bad: dict[str, list[str]] = {}
    for document in request["sources"]:
        model = hub_cache.source(request["hub"], document)
        manifest = model.manifest()
        if manifest is None:
            continue  # nobody has said yet what it should be
        progress.enter("checking", manifest.size)
        found = hub_cache.check(model, manifest, verify=bool(request.get("verify")), read=progress.add, stop=stop)
        if found:
            bad[model.folder] = [entry.path for entry in found]
    return {"bad": bad}


def main() -> int:
    command = sys.argv[1]
    return job.run(command, {"serve": serve, "take": fetch_from_peer, "check": check}[command])


if __name__ == "__main__":
    sys.exit(main())
