"""The engines of tests/engine, as folders under .cache/engines. Each is created once.

An engine is the Python code of its wheel (about 30 MB) and two folders of packages that engines share (1 GB).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cached_folder import AS_LISTED, cached_folder, pip
from vllm_spark.core import paths

HERE = Path(__file__).parent
CACHE = paths.ROOT / ".cache" / "engines"
# vLLM imports numba at its top; the stand-in is 1 KB and numba with llvmlite 196 MB.
NUMBA = paths.ROOT / "sandbox" / "engine" / "image" / "site" / "numba"
# Files that only a build or a test reads, 150 MB of torch.
UNREAD = ("torch/include", "torch/test", "torch/share", "bin", "share")

_TABLE: dict[str, Any] = yaml.load((HERE / "engines.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
ENGINES: Mapping[str, Mapping[str, Any]] = _TABLE["engines"]


def release_of(version: str) -> str:
    """Return the engine that checks a recipe's version: 0.19.1 for 0.19.1.dev6."""
    release = re.match(r"\d+\.\d+\.\d+", version)
    assert release, f"{version} is not a version of vLLM"
    return release[0]


def python_path(version: str) -> list[Path]:
    """Return the folders that make an engine importable. Missing ones are created."""
    engine = ENGINES[version]
    shared = [packages(HERE / name) for name in engine["packages"]]
    return [sources(version), HERE / "spark", *shared]


def sources(version: str) -> Path:
    """Return vLLM's files except its kernels, under the distribution name from which vLLM reads its version."""
    wheel = ENGINES[version]["wheel"]

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as downloads:
            pip("download", *AS_LISTED, "--dest", downloads, wheel)
            with zipfile.ZipFile(next(Path(downloads).iterdir())) as archive:
                wanted = [name for name in archive.namelist() if name.startswith("vllm/") and not name.endswith(".so")]
                archive.extractall(folder, wanted)
        named = folder / f"vllm-{version}.dist-info"
        named.mkdir()
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")

    return cached_folder(CACHE, f"vllm-{version}", wheel, fill)


def packages(requirements: Path) -> Path:
    """Return the folder with the pinned packages, installed as listed."""

    def fill(folder: Path) -> None:
        pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), "--requirement", str(requirements))
        for part in UNREAD:
            shutil.rmtree(folder / part, ignore_errors=True)
        if not (folder / "torch").exists():
            shutil.copytree(NUMBA, folder / "numba", dirs_exist_ok=True)

    return cached_folder(CACHE, requirements.stem, requirements.read_text(encoding="utf-8"), fill)


def environment(version: str) -> dict[str, str]:
    """Return the environment of an engine's Python: its own packages, and no vLLM settings of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, python_path(version)))}
