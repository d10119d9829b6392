"""Which part of a model folder an engine cannot read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


def first_unreadable(snapshot: str) -> str | None:
    """Return the first file or folder of a snapshot that not every user may read; None if all may, or if there is no
    snapshot. The container gets the folder of the repository: snapshots/COMMIT in it has links to its blobs."""
    return next((path for path in _parts(snapshot) if not _readable(path)), None)


def first_outside(snapshot: str) -> str | None:
    """Return the first file of weights in a snapshot that leads out of the folder of its repository, which alone the
    container gets; None if all are in it. Since huggingface_hub 1.32.0 `hf download` leaves such links."""
    repository = os.path.realpath(os.path.dirname(os.path.dirname(snapshot)))
    for folder, _, names in os.walk(snapshot):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".safetensors") and not os.path.realpath(path).startswith(f"{repository}/"):
                return path
    return None


def _parts(snapshot: str) -> Iterator[str]:
    """Yield the folders from the repository to the snapshot, then all that is in it, and the folders of the blobs."""
    snapshots = os.path.dirname(snapshot)
    yield from (os.path.dirname(snapshots), snapshots)
    blobs: set[str] = set()
    for folder, _, names in os.walk(snapshot):
        yield folder
        for name in sorted(names):
            path = os.path.realpath(os.path.join(folder, name))
            blobs.add(os.path.dirname(path))
            yield path
    yield from sorted(blobs)


def _readable(path: str) -> bool:
    """Return True if every user may read a path, or if there is none: other checks report what is missing."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return mode & needed == needed
