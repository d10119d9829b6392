"""Two hub caches in folders, a giver on the loopback device and ways to cut it: what the tests of pull share."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import loopback
from vllm_spark.node.pull import hub_cache, range_copy
from vllm_spark.node.pull.hub_cache import Entry, Manifest, Source
from vllm_spark.node.pull.job import JobProgress

REPOSITORY = "owner/Model"
FOLDER = "models--owner--Model"
COMMIT = "c0ffee" + "0" * 34
TOKEN = "one-time"

Files = Mapping[str, bytes]
FILES: Files = {
    "config.json": b'{"architectures": ["Tiny"]}\n',
    "empty.txt": b"",
    "model-00001-of-00002.safetensors": os.urandom(700_001),
    "model-00002-of-00002.safetensors": os.urandom(300_000),
    "sub/tokenizer.json": os.urandom(5_000),
}


def model(hub: Path, files: Files = FILES, commit: str = COMMIT) -> Source:
    """A model as huggingface_hub leaves it in a cache, with the manifest that pull writes."""
    made = Source(hub, FOLDER, commit)
    entries = []
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        entry = Entry(path, len(content), sha256, sha256 if len(content) > 1000 else hub_cache.git_sha1(content))
        blob = made.blob(entry)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        made.link(entry)
        entries.append(entry)
    made.write(Manifest(REPOSITORY, commit, tuple(entries)))
    return made


def shown(hub: Path, commit: str = COMMIT) -> dict[str, bytes]:
    """What an engine reads in a snapshot."""
    snapshot = Source(hub, FOLDER, commit).snapshot
    return {str(file.relative_to(snapshot)): file.read_bytes() for file in snapshot.rglob("*") if file.is_file()}


def request(hub: Path, port: int, **more: Any) -> dict[str, Any]:
    asked = {"hub": str(hub), "sources": [{"folder": FOLDER, "commit": COMMIT, "repository": REPOSITORY}]}
    return {**asked, "address": "127.0.0.1", "port": port, "token": TOKEN, "patience_s": 2, "streams": 4, **more}


def take(hub: Path, port: int, stop: Event | None = None, **more: Any) -> Mapping[str, Any]:
    return range_copy.fetch_from_peer(request(hub, port, **more), JobProgress(), stop or Event())


@contextmanager
def giving(hub: Path, port: int = 0, commit: str = COMMIT) -> Iterator[range_copy.RangeServer]:
    """A giver of the model below `hub`."""
    given = Source(hub, FOLDER, commit)
    manifest = given.manifest()
    assert manifest is not None
    with range_copy.RangeServer(("127.0.0.1", port), TOKEN, {f"{FOLDER}/{commit}": (given, manifest)}) as giver:
        Thread(target=giver.serve_forever, args=(0.02,), daemon=True).start()
        yield giver
        giver.shutdown()


class Cable:
    """A relay before a giver. It cuts each of the first `cuts` connections after so many bytes, and carries `budget`
    bytes in all, after which it carries none."""

    def __init__(self, port: int, after: int = 0, cuts: int = 0, budget: int = 1 << 40) -> None:
        self.behind, self.after, self.cuts, self.budget = port, after, cuts, budget
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.thread = Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.behind))
            limit = self.after if self.cuts else 1 << 40
            self.cuts -= 1 if self.cuts else 0
            Thread(target=self._carry, args=(near, far), daemon=True).start()
            Thread(target=self._carry, args=(far, near, limit), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, limit: int = 0) -> None:
        """With a limit: from the giver, and counted."""
        left = limit
        with suppress(OSError):
            while (not limit or min(left, self.budget) > 0) and (data := source.recv(16384)):
                target.sendall(data)
                left -= len(data)
                self.budget -= len(data) if limit else 0
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        loopback.end(self.listener, self.thread)
