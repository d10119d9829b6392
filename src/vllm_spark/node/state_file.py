"""Files that are replaced as a whole. plugins/module_utils/spark_state_file.py is a link to this file. Standard library
alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Prefix of a file that is not complete yet.
TEMPORARY = ".vllm-spark-"


def replace_file(path: str | Path, content: str | bytes, mode: int = 0o644, *, durable: bool = True) -> None:
    """Replace a file atomically: a reader sees the old or the new content, never a part. A link is replaced too.

    `durable` makes that true after a loss of power too: content and name are on the disk when this returns. The file
    belongs to the user of this process. Raises OSError with the name of the file.
    """
    folder = os.path.dirname(path) or os.curdir
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as opened:
            os.fchmod(handle, mode)
            opened.write(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
            if durable:
                opened.flush()
                os.fsync(handle)
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        # An error of a write does not name its file.
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = os.fspath(path)
        raise
    if durable:
        sync(folder)


def replace_or_warn(path: str | Path, content: str, loss: str) -> None:
    """Replace a file, in a folder that may be missing. If that fails, the journal has a warning that names the
    loss: a server that runs is worth more than the file."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        warn(f"{loss}: {error}")


def warn(text: str) -> None:
    """Print a line that the journal keeps as a warning."""
    with contextlib.suppress(OSError):
        print(f"<4>vllm-spark: {text}", file=sys.stderr, flush=True)


def sync(path: str | Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """Let one program at a time do something. `path` is the file that they lock, in a folder that may be missing."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with open(path, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
