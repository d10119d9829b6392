"""What tests run and the project does not install: folders under .cache, each made once."""

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


def made(cache: Path, name: str, inputs: str, fill: Callable[[Path], None]) -> Path:
    """The folder of these inputs for this Python, filled by the first who asks and whole or not there."""
    key = hashlib.sha256(f"{sys.version_info[:2]} {inputs}".encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = folder.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            fill(half)
            half.rename(folder)
    return folder


def pip(*words: str) -> None:
    """Run pip. Raises RuntimeError with all it says where it fails."""
    done = subprocess.run([*PIP, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(words)}:\n{done.stdout}{done.stderr}")
