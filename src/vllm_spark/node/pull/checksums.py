"""Checksums that were verified: stamps.json beside the manifests of a model. Runs on the host.

A stamp holds size, time of change, inode and sha256 of a file that was read completely. A file whose stamp still
matches is not read again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from vllm_spark.node.pull.files import pinned_folder, write_json
from vllm_spark.node.pull.model_files import NOTES_DIR

# size, mtime in ns, inode, sha256
Stamp = list[int | str]


@dataclass(slots=True)
class ChecksumCache:
    """Stamps of the files below one model folder, by path."""

    file: Path
    stamps: dict[str, Stamp] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    @classmethod
    def load(cls, root: Path) -> ChecksumCache:
        """Read the stamps of a model folder. An unreadable file counts as empty, and every file is read again."""
        file = root / NOTES_DIR / "stamps.json"
        try:
            stamps = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            stamps = {}
        return cls(file, stamps if isinstance(stamps, dict) else {})

    def is_verified(self, path: Path, sha256: str) -> bool:
        """Return True if this file had this checksum when it was read, and has not changed since."""
        return self.stamps.get(self._key(path)) == _stamp(path, sha256)

    def set(self, path: Path, sha256: str) -> None:
        with self.lock:
            self.stamps[self._key(path)] = _stamp(path, sha256)

    def save(self) -> None:
        """Write the stamps of the files that still exist."""
        root = self.file.parent.parent
        with self.lock, pinned_folder(root.parent, root.name, NOTES_DIR, create=True) as folder:
            self.stamps = {key: stamp for key, stamp in self.stamps.items() if (root / key).exists()}
            write_json(folder / self.file.name, self.stamps)

    def _key(self, path: Path) -> str:
        target = path.resolve()
        root = self.file.parent.parent.resolve()
        return str(target.relative_to(root)) if target.is_relative_to(root) else str(target)


def _stamp(path: Path, sha256: str) -> Stamp:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino, sha256]
