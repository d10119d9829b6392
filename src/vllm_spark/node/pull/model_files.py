"""A model in a hub cache: its manifest and its paths. Runs on the host.

The layout is that of huggingface_hub: FOLDER/blobs/NAME, and FOLDER/snapshots/COMMIT/PATH, which link to blobs. The
engine does not read FOLDER/.vllm-spark. It contains COMMIT.json, the manifest:

    {"repository": "OWNER/NAME", "commit": "40 hex digits",
     "files": [{"path": "…", "size": bytes, "sha256": "64 hex digits", "blob": "name in blobs/"}]}

The sha256 of a manifest travels with Ansible, and the lock file keeps it. Nobody believes the list of a sender.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import NotRequired, TypedDict

from vllm_spark.node.host_job import JobEndedError
from vllm_spark.node.pull.files import LinkError, open_plain, pinned_folder
from vllm_spark.node.state_file import replace_file

NOTES_DIR = ".vllm-spark"
BLOB_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
FOLDER = re.compile(r"models--[\w.-]+")
# What an engine reads of a repository: weights that cannot carry code, and data. A mount of the recipe names more, with
# the file's sha256.
TAKEN_SUFFIXES = frozenset({".safetensors", ".json", ".jsonl", ".jinja", ".txt", ".md", ".model", ".tiktoken", ".bpe"})
TAKEN_NAMES = frozenset({"LICENSE", "NOTICE", "README"})
# Mistral numbers its tokenizers: tokenizer.model.v3, tokenizer.model.v11m1
TAKEN_PREFIX = "tokenizer.model"
# Bounds of a manifest: no model of 2026 has 10,000 files, or a file of 16 TiB.
MAX_MANIFEST_BYTES = 16 << 20
MAX_FILES = 10_000
MAX_FILE_BYTES = 1 << 44
MAX_NAME_BYTES = 200
# Suffixes beside a blob: its partial copy, and the list of chunks that are complete.
PART, PARTS = ".vllm-spark.part", ".vllm-spark.parts"


class ModelRef(TypedDict):
    """A model or drafter of a request: repository OWNER/NAME, folder models--OWNER--NAME, commit.

    `manifest` is the only accepted sha256 of its manifest. `more` are files of other kinds that the recipe names: path
    -> sha256.
    """

    repository: NotRequired[str]
    folder: str
    commit: str
    manifest: NotRequired[str]
    more: NotRequired[Mapping[str, str]]


class ManifestError(JobEndedError):
    """An invalid manifest, or one with paths outside its own folder."""

    reason = "no-manifest"


class OtherManifestError(ManifestError):
    """A valid manifest with another sha256 than the accepted one."""

    reason = "other-manifest"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a model at its commit."""

    path: str
    size: int
    sha256: str
    blob: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Files of a model at one commit."""

    repository: str
    commit: str
    files: tuple[FileEntry, ...]

    @property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(entry.size for entry in self.files)

    @property
    def sha256(self) -> str:
        """Return the identity of the files that every recipe takes. The names of blobs do not count."""
        files = sorted([entry.path, entry.size, entry.sha256] for entry in self.files if is_taken(entry.path))
        text = json.dumps([self.repository, self.commit, files], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text as it is stored and sent."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def is_taken(path: str, more: Collection[str] = ()) -> bool:
    """Return True if a file of a repository is taken: of a kind that an engine reads, or named by the recipe."""
    name = PurePosixPath(path)
    by_name = name.name in TAKEN_NAMES or name.name.startswith(TAKEN_PREFIX)
    return by_name or name.suffix.lower() in TAKEN_SUFFIXES or path in more


def check_path(path: object) -> str:
    """Return the path of a file inside its repository. Raises ManifestError."""
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or any(not _is_name(part) for part in parts):
        raise ManifestError(f"invalid manifest: file {ascii(path)[:200]}")
    return "/".join(parts)


def _is_name(part: str) -> bool:
    # Cc: control characters, Cf: invisible ones, Cs: surrogates
    printable = not any(unicodedata.category(character) in {"Cc", "Cf", "Cs"} for character in part)
    return part not in {"", ".", ".."} and printable and len(part.encode()) <= MAX_NAME_BYTES


def parse(content: str | bytes, more: Mapping[str, str] | None = None) -> Manifest:
    """Return a manifest with the files that are taken from its JSON. Raises ManifestError."""
    try:
        document = json.loads(content)
        if not isinstance(document, Mapping) or not isinstance(document["files"], list):
            raise TypeError("not a map with a list of files")
        if len(document["files"]) > MAX_FILES:
            raise ValueError(f"{len(document['files'])} files, at most {MAX_FILES}")
        entries = [_entry(file) for file in document["files"]]
        commit, repository = str(document["commit"]), str(document["repository"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ManifestError(f"invalid manifest: {type(error).__name__}: {ascii(str(error))[:200]}") from error
    taken = tuple(entry for entry in entries if is_taken(entry.path, more or {}))
    if not COMMIT.fullmatch(commit) or not taken:
        raise ManifestError(f"invalid manifest: commit {ascii(commit)[:60]} with {len(taken)} files")
    _refuse_conflicts(taken)
    for entry in taken:
        if (more or {}).get(entry.path, entry.sha256) != entry.sha256:
            raise OtherManifestError(f"{entry.path} has sha256 {entry.sha256}, the recipe names {more}")
    return Manifest(repository, commit, taken)


def _entry(file: Mapping[str, object]) -> FileEntry:
    path, size, sha256, blob = check_path(file["path"]), file["size"], str(file["sha256"]), str(file["blob"])
    if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
        raise ManifestError(f"invalid manifest: {path} has the size {ascii(size)[:60]}, expected 0 to {MAX_FILE_BYTES}")
    if not BLOB_NAME.fullmatch(blob) or not SHA256.fullmatch(sha256):
        raise ManifestError(f"invalid manifest: {path} has blob {ascii(blob)[:70]} and sha256 {ascii(sha256)[:70]}")
    return FileEntry(path, size, sha256, blob)


def _refuse_conflicts(entries: Collection[FileEntry]) -> None:
    """Refuse two files with one path, a file that is also a folder, and one blob for two contents."""
    paths = {entry.path for entry in entries}
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    contents = {(entry.blob, entry.sha256, entry.size) for entry in entries}
    if len(paths) < len(entries) or paths & folders or len({blob for blob, _, _ in contents}) < len(contents):
        raise ManifestError("invalid manifest: two of its files have one path or one blob")


@dataclass(frozen=True, slots=True)
class Source:
    """A model or a drafter at one commit in a hub cache. Raises ManifestError if folder or commit is invalid."""

    hub: Path
    folder: str
    commit: str
    # The only accepted sha256 of its manifest; empty accepts any.
    accepted: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

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

    def pinned(self, *names: str, create: bool = False) -> AbstractContextManager[Path]:
        """Return a context with a folder of the model that nobody can replace by a link. Raises LinkError, OSError."""
        return pinned_folder(self.hub, self.folder, *names, create=create)

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None if it is not written or is not the accepted one. Raises ManifestError."""
        manifest = self.stored_manifest()
        try:
            return self.accept(manifest) if manifest else None
        except OtherManifestError:
            return None

    def stored_manifest(self) -> Manifest | None:
        """Return the manifest in the folder, or None if it is not written. Raises ManifestError."""
        try:
            with self.manifest_file.open("rb") as file:
                manifest = parse(file.read(MAX_MANIFEST_BYTES), self.more)
        except FileNotFoundError:
            return None
        except ManifestError as error:
            raise type(error)(f"{self.manifest_file}: {error}") from error
        if manifest.commit != self.commit:
            raise ManifestError(f"{self.manifest_file} has the commit {manifest.commit}")
        return manifest

    def accept(self, manifest: Manifest) -> Manifest:
        """Return the manifest if it is the accepted one and has every named file. Raises OtherManifestError."""
        if manifest.commit != self.commit:
            raise OtherManifestError(f"it has the commit {manifest.commit}, expected {self.commit}")
        if missing := set(self.more) - {entry.path for entry in manifest.files}:
            raise OtherManifestError(
                f"{self.folder} does not have {', '.join(sorted(missing))}, which the recipe names"
            )
        if self.accepted not in {"", manifest.sha256}:
            raise OtherManifestError(
                f"the manifest of {self.folder} at {self.commit[:12]} has sha256 {manifest.sha256}, "
                f"expected {self.accepted}"
            )
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        with self.pinned(NOTES_DIR, create=True) as folder:
            replace_file(folder / self.manifest_file.name, manifest.to_json())

    def file(self, entry: FileEntry) -> Path:
        """Return the path that the engine reads."""
        return self.snapshot / entry.path

    def blob(self, entry: FileEntry) -> Path:
        return self.root / "blobs" / entry.blob

    def open(self, entry: FileEntry) -> int:
        """Open the file that the engine reads and return its descriptor.

        Raises OSError, and LinkError for a link other than one to a blob of this model.
        """
        file = self.file(entry)
        with self.pinned("snapshots", self.commit, *entry.path.split("/")[:-1]) as folder:
            path = folder / file.name
            if not path.is_symlink():
                return open_plain(path, os.O_RDONLY, str(file))
            target = Path(os.path.normpath(file.parent / path.readlink()))
        if target.parent != self.root / "blobs":
            raise LinkError(f"{file} leads to {target}, out of {self.root / 'blobs'}")
        with self.pinned("blobs") as folder:
            return open_plain(folder / target.name, os.O_RDONLY, str(target))

    def link(self, entry: FileEntry) -> None:
        """Link the blob into the snapshot with a relative link, as huggingface_hub does."""
        file = self.file(entry)
        target = os.path.relpath(self.blob(entry), file.parent)
        with self.pinned("snapshots", self.commit, *entry.path.split("/")[:-1], create=True) as folder:
            link = folder / file.name
            if link.is_symlink() and str(link.readlink()) == target:
                return
            temporary = folder / f"{file.name}{PART}"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            temporary.replace(link)

    def remove(self, entry: FileEntry) -> None:
        """Delete a damaged file: its link and the blob of the link."""
        file = self.file(entry)
        blobs = {entry.blob}
        with suppress(FileNotFoundError), self.pinned("snapshots", self.commit, *entry.path.split("/")[:-1]) as folder:
            link = folder / file.name
            if link.is_symlink() and (target := link.readlink()).parent.name == "blobs":
                blobs.add(target.name)
            link.unlink(missing_ok=True)
        with suppress(FileNotFoundError), self.pinned("blobs") as folder:
            for blob in blobs:
                (folder / blob).unlink(missing_ok=True)


def source_of(hub: str, ref: ModelRef) -> Source:
    """Return the model of a request. Raises ManifestError."""
    return Source(Path(hub), str(ref["folder"]), str(ref["commit"]), ref.get("manifest", ""), ref.get("more", {}))
