"""Weights in a hub cache: what should be there (a manifest), what is, and what has been proven. Runs on the box.

A hub cache as huggingface_hub makes it: FOLDER/blobs/NAME, and FOLDER/snapshots/COMMIT/PATH, which link to blobs.
Beside them, where the engine does not look, FOLDER/.vllm-spark/COMMIT.json, the manifest:

    {"repository": "OWNER/NAME", "commit": "40 hex digits",
     "files": [{"path": "…", "size": bytes, "sha256": "64 hex digits", "blob": "name in blobs/"}]}

and stamps.json: which files were read whole and had their checksum, by size, time of change and inode. A file that has
its stamp is not read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

NOTES = ".vllm-spark"
BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
FOLDER = re.compile(r"models--[\w.-]+")
BLOCK = 4 << 20
# Hashing leaves Python's lock, so threads are as good as processes. More than a Spark's fast cores gain nothing.
READERS = 8
# What a partly copied blob and its list of parts are called beside the blob.
PART, PARTS = ".vllm-spark.part", ".vllm-spark.parts"


class StoppedError(Exception):
    """Whoever waits for it has told it to end. Nothing is judged by what was not read whole."""


class ManifestError(Exception):
    """A manifest that is none, or that names files outside of its own folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a model at its commit."""

    path: str
    size: int
    sha256: str
    blob: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model is at one commit."""

    repository: str
    commit: str
    files: tuple[Entry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)

    def to_json(self) -> dict[str, Any]:
        files = [
            {"path": entry.path, "size": entry.size, "sha256": entry.sha256, "blob": entry.blob} for entry in self.files
        ]
        return {"repository": self.repository, "commit": self.commit, "files": files}


def parse(document: object) -> Manifest:
    """A manifest from its JSON. Raises ManifestError."""
    try:
        if not isinstance(document, Mapping):
            raise TypeError("it is no map")
        entries = tuple(
            Entry(str(file["path"]), int(file["size"]), str(file["sha256"]), str(file["blob"]))
            for file in document["files"]
        )
        found = Manifest(str(document["repository"]), str(document["commit"]), entries)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"no manifest: {error!r}") from error
    if not COMMIT.fullmatch(found.commit) or not entries:
        raise ManifestError(f"a manifest of commit {found.commit[:60]!r} with {len(entries)} files")
    for entry in entries:
        words = entry.path.split("/")
        safe = not any(word in {"", ".", ".."} for word in words) and "\0" not in entry.path
        if not safe or not BLOB.fullmatch(entry.blob) or not SHA256.fullmatch(entry.sha256) or entry.size < 0:
            raise ManifestError(f"a manifest with the file {entry.path[:200]!r}, blob {entry.blob[:70]!r}")
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """A model or a drafter at one commit, below a hub cache."""

    hub: Path
    folder: str
    commit: str

    def __post_init__(self) -> None:
        if not FOLDER.fullmatch(self.folder) or not COMMIT.fullmatch(self.commit):
            raise ManifestError(f"no model: {self.folder!r} at {self.commit!r}")

    @property
    def root(self) -> Path:
        return self.hub / self.folder

    @property
    def snapshot(self) -> Path:
        return self.root / "snapshots" / self.commit

    @property
    def manifest_file(self) -> Path:
        return self.root / NOTES / f"{self.commit}.json"

    def manifest(self) -> Manifest | None:
        """What it should be, or None where nobody has written that down. Raises ManifestError."""
        try:
            found = parse(json.loads(self.manifest_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ManifestError(f"{self.manifest_file}: {error}") from error
        if found.commit != self.commit:
            raise ManifestError(f"{self.manifest_file} is of commit {found.commit}")
        return found

    def write(self, manifest: Manifest) -> None:
        self.manifest_file.parent.mkdir(parents=True, exist_ok=True)
        place(self.manifest_file, manifest.to_json())

    def file(self, entry: Entry) -> Path:
        """Where the engine reads it."""
        return self.snapshot / entry.path

    def blob(self, entry: Entry) -> Path:
        return self.root / "blobs" / entry.blob

    def link(self, entry: Entry) -> None:
        """Have the snapshot show the blob, the way huggingface_hub does it: a relative link."""
        file, blob = self.file(entry), self.blob(entry)
        wanted = os.path.relpath(blob, file.parent)
        if file.is_symlink() and str(file.readlink()) == wanted:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}{PART}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(wanted)
        fresh.replace(file)

    def forget(self, entry: Entry) -> None:
        """Take a file away that is not what it should be: its link and what that leads to."""
        file = self.file(entry)
        if file.is_symlink():
            with suppress(OSError):
                file.resolve(strict=True).relative_to(self.root.resolve())
                file.resolve().unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        self.blob(entry).unlink(missing_ok=True)


def source(hub: str, document: Mapping[str, Any]) -> Source:
    """From a request: folder and commit. Raises ManifestError."""
    return Source(Path(hub), str(document["folder"]), str(document["commit"]))


def place(file: Path, document: object) -> None:
    """Write JSON so that a reader sees the old or the new one."""
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


@dataclass(slots=True)
class ChecksumCache:
    """Which files of one folder were read whole, and what their sha256 was then."""

    file: Path
    known: dict[str, list[Any]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, root: Path) -> ChecksumCache:
        file = root / NOTES / "stamps.json"
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}  # without stamps everything is read again
        return cls(file, known if isinstance(known, dict) else {})

    def proven(self, path: Path, sha256: str) -> bool:
        """Was this very file, unchanged since, seen to have this checksum?"""
        return self.known.get(self._key(path)) == _stamp(path, sha256)

    def set(self, path: Path, sha256: str) -> None:
        with self.lock:
            self.known[self._key(path)] = _stamp(path, sha256)

    def save(self) -> None:
        """Write what still is; what has gone needs no stamp."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.lock:
            root = self.file.parent.parent
            self.known = {key: stamp for key, stamp in self.known.items() if (root / key).exists()}
            place(self.file, self.known)

    def _key(self, path: Path) -> str:
        real = path.resolve()
        root = self.file.parent.parent.resolve()
        return str(real.relative_to(root)) if real.is_relative_to(root) else str(real)


def _stamp(path: Path, sha256: str) -> list[Any]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ino, sha256]


def file_state(source: Source, entry: Entry, stamps: ChecksumCache) -> str:
    """whole (proven before), unread (the right size, never read) or missing (absent, or of another size)."""
    path = source.file(entry)
    try:
        size = path.stat().st_size
    except OSError:
        return "missing"
    if size != entry.size:
        return "missing"
    return "whole" if stamps.proven(path, entry.sha256) else "unread"


def look(hub: str, wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The state of each model, without reading a file: manifest or not, and bytes that are whole, unread, missing, and
    of the missing ones those that an earlier copy has left."""
    return [_looked(source(hub, document)) for document in wanted]


def _looked(model: Source) -> dict[str, Any]:
    answer: dict[str, Any] = {"folder": model.folder, "commit": model.commit, "manifest": False, "error": ""}
    answer |= {"files": 0, "size": 0, "whole": 0, "unread": 0, "missing": 0, "partial": 0, "wrong": []}
    answer["present"] = model.snapshot.is_dir() and any(model.snapshot.iterdir())
    try:
        manifest = model.manifest()
    except ManifestError as error:
        return answer | {"error": str(error)}
    if manifest is None:
        return answer
    stamps = ChecksumCache.of(model.root)
    for entry in manifest.files:
        state = file_state(model, entry, stamps)
        answer[state] += entry.size
        if state == "missing":
            answer["partial"] += copied(model, entry)
            answer["wrong"].append(entry.path)
    return answer | {"manifest": True, "files": len(manifest.files), "size": manifest.size}


def copied(model: Source, entry: Entry) -> int:
    """Bytes that the disk already holds for a file that is on its way: they need no more room."""
    with suppress(OSError):
        found = model.blob(entry).with_name(f"{entry.blob}{PART}").stat()
        return min(found.st_blocks * 512, entry.size)
    return 0


def check(
    model: Source,
    manifest: Manifest,
    *,
    verify: bool,
    read: Callable[[int], None] | None = None,
    stop: Event | None = None,
) -> list[Entry]:
    """The files that are not what they should be: absent, of another size, or of another sha256. A bad one is taken
    away, so that whoever fetches it begins anew. `verify` reads also what has a stamp; `read` is told bytes as they are
    read."""
    stamps = ChecksumCache.of(model.root)
    for entry in manifest.files:
        link_existing_blob(model, entry)
    states = {entry: file_state(model, entry, stamps) for entry in manifest.files}
    reading = [entry for entry, state in states.items() if state == "unread" or (verify and state == "whole")]

    def right(entry: Entry) -> bool:
        path = model.file(entry)
        try:
            if sha256_of(path, read, stop) != entry.sha256:
                return False
        except OSError:
            return False
        stamps.set(path, entry.sha256)
        return True

    with ThreadPoolExecutor(READERS) as pool:
        bad = [entry for entry, good in zip(reading, pool.map(right, reading), strict=True) if not good]
    missing = [entry for entry, state in states.items() if state == "missing"]
    for entry in [*bad, *missing]:
        model.forget(entry)
    if reading or missing:
        stamps.save()
    return sorted([*bad, *missing], key=lambda entry: entry.path)


def link_existing_blob(model: Source, entry: Entry) -> None:
    """Show a blob that is there already, of another commit or of a copy that was cut before its link."""
    blob = model.blob(entry)
    if not model.file(entry).exists() and blob.is_file() and blob.stat().st_size == entry.size:
        model.link(entry)


def sha256_of(path: Path, read: Callable[[int], None] | None = None, stop: Event | None = None) -> str:
    """The checksum of a whole file. What was read leaves the page cache: a Spark's memory is its model's."""
    digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
            if read:
                read(size)
            if stop and stop.is_set():
                raise StoppedError("it was told to end")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def git_sha1(content: bytes) -> str:
    """What the hub calls a small file by: git's hash of it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def bytes_of(entries: Iterable[Entry]) -> int:
    return sum(entry.size for entry in entries)


def main() -> int:
    """Answer one look: {"hub", "sources"} comes in, the list of `look` goes out."""
    asked = json.load(sys.stdin)
    try:
        answer: object = look(asked["hub"], asked["sources"])
    except ManifestError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
