"""The shared store of a hub cache: HUB/blobs/XX/HASH, a file to which blobs of several models link. Runs on the host.

huggingface_hub fills it since 1.32.0. HASH is xet's, not a sha256. Beside HASH lie HASH.lock, which the library locks,
and HASH.refs, whose lines name the blobs that link to the file or once did: models--OWNER--NAME/blobs/NAME. A launch
mounts the folder of its model alone, so no engine can follow such a link.

It uses only the standard library, because the modules of Ansible import it too.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

STORE = "blobs"
# The library marks its folder. A folder of this name without the mark is somebody else's.
MARK = ".huggingface-shared-blobs"
HASH = re.compile(r"[0-9a-f]{64}")
TARGET = re.compile(r"(?:.*/)?blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
REFS, LOCK = ".refs", ".lock"
MAX_REFS_BYTES = 1 << 20


def is_store(folder: Path) -> bool:
    """Return True if a folder is the shared store of a hub cache."""
    return folder.name == STORE and not folder.is_symlink() and (folder / MARK).is_file()


def hash_of(link: Path) -> str:
    """Return the HASH of the file in the store that a link names; empty for another link and for no link."""
    try:
        match = TARGET.fullmatch(os.readlink(link))
    except OSError:
        return ""
    return match[2] if match else ""


def links(hub: Path) -> Mapping[str, set[str]]:
    """Return the links of all models and data sets of the cache into the store: HASH -> FOLDER/blobs/NAME."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in hub.glob(f"*--*/{STORE}"):
        with suppress(OSError):
            for name in os.listdir(folder):
                if linked := hash_of(folder / name):
                    found[linked].add(f"{folder.parent.name}/{STORE}/{name}")
    return found


def references(hub: Path) -> Mapping[str, set[str]]:
    """Return the files of the store that were written for a blob, linked or not: FOLDER/blobs/NAME -> HASH."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in files(hub):
        with suppress(OSError), open(f"{file}{REFS}", "rb", opener=_open_plainly) as refs:
            for line in refs.read(MAX_REFS_BYTES).decode(errors="replace").splitlines():
                found[line].add(file.name)
    return found


def _open_plainly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def files(hub: Path) -> Iterator[Path]:
    """Yield the files of the store; none if the cache has no store."""
    store = hub / STORE
    for file in sorted(store.glob("??/*")) if is_store(store) else ():
        if HASH.fullmatch(file.name) and file.is_file() and not file.is_symlink():
            yield file


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Yield True while this process holds the library's lock of a file of the store.

    Yield False if another process has it, and if there is no lock: the library never deletes one.
    """
    try:
        descriptor = _open_plainly(f"{file}{LOCK}", os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:
        alone = False
    try:
        yield alone
    finally:
        os.close(descriptor)


def unlinked(hub: Path) -> list[Path]:
    """Return the files of the store to which nothing in the cache links."""
    used = links(hub)
    return [file for file in files(hub) if file.name not in used]


def remove(file: Path) -> str:
    """Delete a file of the store to which nothing links. Return why it stays, or an empty text."""
    with locked(file) as alone:
        if not alone:
            return "another process uses it"
        if users := links(file.parents[2]).get(file.name):
            return f"{min(users)} links to it"
        file.unlink(missing_ok=True)
        Path(f"{file}{REFS}").unlink(missing_ok=True)
    return ""
