"""A tiny model in a hub cache, its file server on the loopback device, and a relay that loses connections."""

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
from fakes.fake_hub import Hub
from vllm_spark.node.pull import range_client
from vllm_spark.node.pull.files import git_sha1
from vllm_spark.node.pull.job import JobProgress
from vllm_spark.node.pull.model_files import FileEntry, Manifest, Source
from vllm_spark.node.pull.range_server import RangeServer

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
UNLIMITED = 1 << 40


def write_model(hub: Path, files: Files = FILES, commit: str = COMMIT) -> Source:
    """Write a model as huggingface_hub leaves it in a cache, with the manifest of a pull."""
    source, manifest = Source(hub, FOLDER, commit), manifest_of(files, commit)
    for entry in manifest.files:
        blob = source.blob(entry)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(files[entry.path])
        source.link(entry)
    source.write_manifest(manifest)
    return source


def manifest_of(files: Files, commit: str = COMMIT) -> Manifest:
    """Return the manifest of a pull from the hub: small files have git's hash as their blob."""
    entries = []
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        entries.append(FileEntry(path, len(content), sha256, sha256 if len(content) > 1000 else git_sha1(content)))
    return Manifest(REPOSITORY, commit, tuple(entries))


def snapshot_files(hub: Path, commit: str = COMMIT) -> dict[str, bytes]:
    """Return the files that an engine reads."""
    snapshot = Source(hub, FOLDER, commit).snapshot
    return {str(file.relative_to(snapshot)): file.read_bytes() for file in snapshot.rglob("*") if file.is_file()}


def request(hub: Path, port: int, files: Files = FILES, **more: Any) -> dict[str, Any]:
    """Return a request of fetch-peer or serve-files for a model with these files."""
    ref = {"folder": FOLDER, "commit": COMMIT, "repository": REPOSITORY, "manifest": manifest_of(files).sha256}
    models = {"hub": str(hub), "sources": [ref]}
    return {**models, "address": "127.0.0.1", "port": port, "token": TOKEN, "idle_timeout_s": 60, "streams": 4, **more}


def fetch(hub: Path, port: int, stop: Event | None = None, **more: Any) -> dict[str, float]:
    return range_client.fetch_from_peer(request(hub, port, **more), JobProgress(), stop or Event())


@contextmanager
def file_server(hub: Path, port: int = 0, commit: str = COMMIT) -> Iterator[RangeServer]:
    """Serve the model below `hub`."""
    source = Source(hub, FOLDER, commit)
    manifest = source.manifest()
    assert manifest is not None
    models = {f"{FOLDER}/{commit}": (source, manifest)}
    with loopback.running(RangeServer(("127.0.0.1", port), TOKEN, models)) as server:
        yield server


def write_files(root: Path, files: Files) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


@contextmanager
def serving_hub(folder: Path) -> Iterator[Hub]:
    """Serve a hub that has the model, from a folder."""
    write_files(folder / REPOSITORY / COMMIT, FILES)
    with loopback.running(Hub(folder, ("127.0.0.1", 0))) as server:
        yield server


class FaultyRelay:
    """A relay in front of a server. It closes each of the first `losses` connections after `after` bytes.

    It carries `budget` bytes from the server in all, and then closes every connection.
    """

    def __init__(self, port: int, after: int = 0, losses: int = 0, budget: int = UNLIMITED) -> None:
        self.server_port, self.after, self.losses, self.budget = port, after, losses, budget
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.thread = Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.server_port))
            limit = self.after if self.losses else UNLIMITED
            self.losses -= 1 if self.losses else 0
            Thread(target=self._carry, args=(client, server), daemon=True).start()
            Thread(target=self._carry, args=(server, client, limit), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, limit: int = 0) -> None:
        """Copy bytes in one direction. A limit marks the direction from the server, whose bytes are counted."""
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
        loopback.close_listener(self.listener, self.thread)
