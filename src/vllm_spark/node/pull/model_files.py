"""A model in a hub cache: its manifest and its paths. Runs on the host.

The layout is that of huggingface_hub: FOLDER/blobs/NAME, and FOLDER/snapshots/COMMIT/PATH, which link to blobs. The
engine does not read FOLDER/.vllm-spark. It contains COMMIT.json, the manifest:

    {"repository": "OWNER/NAME", "commit": "40 hex digits",
     "files": [{"path": "…", "size": bytes, "sha256": "64 hex digits", "blob": "name in blobs/"}]}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from vllm_spark.node.pull.files import write_json

NOTES_DIR = ".vllm-spark"
BLOB_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
FOLDER = re.compile(r"models--[\w.-]+")
# Suffixes beside a blob: its partial copy, and the list of chunks that are complete.
PART, PARTS = ".vllm-spark.part", ".vllm-spark.parts"


class ModelRef(TypedDict):
    """A model or drafter of a request: repository OWNER/NAME, folder models--OWNER--NAME, commit."""

    repository: NotRequired[str]
    folder: str
    commit: str


class FileJson(TypedDict):
    """A file of a manifest as it is stored. `size` is in bytes."""

    path: str
    size: int
    sha256: str
    blob: str


class ManifestJson(TypedDict):
    """A manifest as it is stored."""

    repository: str
    commit: str
    files: list[FileJson]


class ManifestError(Exception):
    """An invalid manifest, or one with paths outside its own folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a model at its commit."""

    path: str
    size: int
    sha256: str
    blob: str

    def to_json(self) -> FileJson:
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "blob": self.blob}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Files of a model at one commit."""

    repository: str
    commit: str
    files: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(entry.size for entry in self.files)

    def to_json(self) -> ManifestJson:
        files = [entry.to_json() for entry in self.files]
        return {"repository": self.repository, "commit": self.commit, "files": files}


def parse(document: object) -> Manifest:
    """Return a manifest from its JSON. Raises ManifestError."""
    try:
        if not isinstance(document, Mapping):
            raise TypeError("not a map")
        entries = tuple(
            Entry(str(file["path"]), int(file["size"]), str(file["sha256"]), str(file["blob"]))
            for file in document["files"]
        )
        manifest = Manifest(str(document["repository"]), str(document["commit"]), entries)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"invalid manifest: {error!r}") from error
    if not COMMIT.fullmatch(manifest.commit) or not entries:
        raise ManifestError(f"invalid manifest: commit {manifest.commit[:60]!r} with {len(entries)} files")
    for entry in entries:
        parts = entry.path.split("/")
        safe = not any(part in {"", ".", ".."} for part in parts) and "\0" not in entry.path
        if not safe or not BLOB_NAME.fullmatch(entry.blob) or not SHA256.fullmatch(entry.sha256) or entry.size < 0:
            raise ManifestError(f"invalid manifest: file {entry.path[:200]!r}, blob {entry.blob[:70]!r}")
    return manifest


@dataclass(frozen=True, slots=True)
class Source:
    """A model or a drafter at one commit in a hub cache. Raises ManifestError if folder or commit is invalid."""

    hub: Path
    folder: str
    commit: str

    def __post_init__(self) -> None:
        if not FOLDER.fullmatch(self.folder) or not COMMIT.fullmatch(self.commit):
            raise ManifestError(f"invalid model: {self.folder!r} at {self.commit!r}")

    @property
    def root(self) -> Path:
        return self.hub / self.folder

    @property
    def snapshot(self) -> Path:
        return self.root / "snapshots" / self.commit

    @property
    def manifest_file(self) -> Path:
        return self.root / NOTES_DIR / f"{self.commit}.json"

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None if it is not written yet. Raises ManifestError."""
        try:
            manifest = parse(json.loads(self.manifest_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ManifestError(f"{self.manifest_file}: {error}") from error
        if manifest.commit != self.commit:
            raise ManifestError(f"{self.manifest_file} has the commit {manifest.commit}")
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        self.manifest_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.manifest_file, manifest.to_json())

    def file(self, entry: Entry) -> Path:
        """Return the path that the engine reads."""
        return self.snapshot / entry.path

    def blob(self, entry: Entry) -> Path:
        return self.root / "blobs" / entry.blob

    def link(self, entry: Entry) -> None:
        """Link the blob into the snapshot with a relative link, as huggingface_hub does."""
        file, blob = self.file(entry), self.blob(entry)
        target = os.path.relpath(blob, file.parent)
        if file.is_symlink() and str(file.readlink()) == target:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}{PART}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(file)

    def remove(self, entry: Entry) -> None:
        """Delete a damaged file: its link and the blob of the link."""
        file = self.file(entry)
        if file.is_symlink():
            with suppress(OSError):
                file.resolve(strict=True).relative_to(self.root.resolve())
                file.resolve().unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        self.blob(entry).unlink(missing_ok=True)


def source_of(hub: str, ref: ModelRef) -> Source:
    """Return the model of a request. Raises ManifestError."""
    return Source(Path(hub), str(ref["folder"]), str(ref["commit"]))
