"""Folders under .cache with programs that only tests need. Each is filled once."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
AS_LISTED = ("--no-deps", "--only-binary=:all:")


def cached_folder(cache: Path, name: str, inputs: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder for these inputs and this Python version. It is filled on first use, completely or not."""
    key = hashlib.sha256(f"{sys.version_info[:2]} {inputs}".encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            temporary = folder.with_suffix(".half")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            fill(temporary)
            temporary.rename(folder)
    return folder


def pip(*args: str) -> None:
    """Run pip. Raises RuntimeError with its output if it fails."""
    done = subprocess.run([*PIP, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(args)}:\n{done.stdout}{done.stderr}")
