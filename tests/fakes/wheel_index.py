"""Empty wheels and an index of them, by the program that makes those of molecule/images."""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_spark.core import paths

SHELF = runpy.run_path(str(paths.ROOT / "molecule" / "images" / "files" / "make_shelf.py"))
# The name of a file without its suffix -> its requirements, one on a line.
Wheels = Mapping[str, str]


def write(folder: Path, wheels: Wheels, **environment: str) -> dict[str, str]:
    """Write an index of wheels. Returns the environment in which pip and uv know no other one."""
    folder.mkdir()
    made = []
    for file, requires in wheels.items():
        name, version, tag = file.split("-", 2)
        made.append(SHELF["wheel"](folder, name, version, requires, tag))
    SHELF["index"](folder / "simple", made)
    url = (folder / "simple").as_uri()
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": url,
        "UV_INDEX_URL": url,
        **environment,
    }


def line(folder: Path, file: str) -> str:
    """Return the line of a requirements file for one wheel."""
    name, version, _ = file.split("-", 2)
    sha256 = hashlib.sha256((folder / f"{file}.whl").read_bytes()).hexdigest()
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{sha256}"


def set_all(monkeypatch: Any, environment: Mapping[str, str]) -> None:
    """Set the environment of a test."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
