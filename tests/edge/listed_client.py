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
QUIET = {"LANGCHAIN_TRACING_V2": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


def packages(name: str) -> Path:
    """Return the folder with the packages, as listed."""
    listed = HERE / f"requirements-{name}.txt"

    def fill(folder: Path) -> None:
        pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), "--requirement", str(listed))

    return cached_folder(paths.ROOT / ".cache" / "edge", name, listed.read_text(encoding="utf-8"), fill)


def started(program: str, installed: Path, edge: RunningEdge, *words: str) -> subprocess.Popen[str]:
    """Start a program of this folder, with these packages and the same file that `vllm-spark trust` writes."""
    folders = {"PATH": os.defpath, "HOME": str(edge.folder), "PYTHONPATH": str(installed)}
    env = {**folders, **QUIET, "SSL_CERT_FILE": str(edge.folder / "ca.crt")}
    # -S: of this interpreter only the standard library.
    command = ["timeout", str(LIFE_S), sys.executable, "-S", str(HERE / program), *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the lines that a program has still to print. Fails with its messages if it fails."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    return [json.loads(line) for line in out.splitlines()]


def answers(name: str, edge: RunningEdge, *words: str) -> list[dict[str, Any]]:
    """Return the lines that a client prints. It gets `words`, the URL of the edge and the key of Ada."""
    url = f"https://127.0.0.1:{edge.port}"
    return said(started(f"{name}_client.py", packages(name), edge, *words, url, KEY))
