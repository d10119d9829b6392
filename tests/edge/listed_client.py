"""Clients in a process of their own, with the packages of a list: NAME_client.py and requirements-NAME.txt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cached_folder import AS_LISTED, cached_folder, pip
from fakes.running_edge import KEY, RunningEdge
from vllm_spark.core import paths

HERE = Path(__file__).parent
# A first import compiles thousands of files.
LIFE_S = 240


def packages(name: str) -> Path:
    """Return the folder with the packages, as listed."""
    listed = HERE / f"requirements-{name}.txt"

    def fill(folder: Path) -> None:
        pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), "--requirement", str(listed))

    return cached_folder(paths.ROOT / ".cache" / "edge", name, listed.read_text(encoding="utf-8"), fill)


def said(name: str, edge: RunningEdge, *words: str) -> list[dict[str, Any]]:
    """Return the lines that the client prints. It gets `words`, the URL of the edge and the key of Ada."""
    trusted = str(edge.folder / "ca.crt")
    env = {
        "PATH": os.defpath,
        "HOME": str(edge.folder),
        "PYTHONPATH": str(packages(name)),
        "SSL_CERT_FILE": trusted,
        "REQUESTS_CA_BUNDLE": trusted,
        "LANGCHAIN_TRACING_V2": "false",
    }
    # -S: of this interpreter only the standard library.
    command = ["timeout", str(LIFE_S), sys.executable, "-S", str(HERE / f"{name}_client.py"), *words]
    url = f"https://127.0.0.1:{edge.port}"
    done = subprocess.run([*command, url, KEY], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
