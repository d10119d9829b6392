"""Real hub libraries: that of the older engines, the last before the shared store, the first with it, and the newest.

Each is a folder of packages under .cache/hub-libraries, filled once, without the packages of this Python.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cached_folder import AS_LISTED, cached_folder, pip
from vllm_spark.core import paths

CACHE = paths.ROOT / ".cache" / "hub-libraries"
DATA = ("filelock==4.2.11", "fsspec==2026.9.0", "idna==3.20", "packaging==26.3", "pyyaml==6.0.3", "tqdm==4.70.1")
BASE = (*DATA, "typing_extensions==4.16.0", "certifi==2026.7.22")
# With the client of xet of its time.
REQUESTS = ("requests==2.34.2", "urllib3==2.8.0", "charset-normalizer==3.5.3", "hf-xet==1.2.0")
HTTPX = ("anyio==4.16.0", "click==8.5.1", "h11==0.16.0", "hf-xet==1.8.0")
LIBRARIES = {
    "0.36.2": REQUESTS,
    "1.31.0": (*HTTPX, "httpx==0.28.1", "httpcore==1.0.9"),
    "1.32.0": (*HTTPX, "httpx==0.28.1", "httpcore==1.0.9"),
    "2.4.0": (*HTTPX, "httpx2==2.16.2", "httpcore2==2.16.2", "truststore==0.10.5"),
}
# Of these `hf download` fills the shared store.
SHARING = ("1.32.0", "2.4.0")


def library(version: str) -> Path:
    """Return the folder that makes a version of huggingface_hub importable."""
    listed = (f"huggingface_hub=={version}", *BASE, *LIBRARIES[version])

    def fill(folder: Path) -> None:
        pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), *listed)
        shutil.rmtree(folder / "bin")

    return cached_folder(CACHE, version, " ".join(listed), fill)
