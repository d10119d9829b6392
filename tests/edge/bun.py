"""Bun, whose TLS library is BoringSSL, as Claude Code and opencode have it: a foreign client of the edge."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cached_folder import cached_folder
from vllm_spark.core import paths

VERSION = "1.4.5"
MACHINES = {"x86_64": "x64-baseline", "aarch64": "aarch64"}
# Prints the status of an answer, or the code of the error.
PROGRAM = "await fetch(process.argv[1]).then(({status}) => console.log(status), ({code}) => console.log(code))"
LIFE_S = 60


def bun() -> str:
    """Return the path of Bun, from npm. Skips the test where neither BUN=PATH nor npm is there."""
    if own := os.environ.get("BUN"):
        return own
    npm, machine = shutil.which("npm"), MACHINES.get(platform.machine())
    if not (npm and machine):
        pytest.skip("no Bun: apt-get install npm, which brings it for x86_64 and aarch64, or BUN=PATH")
    package = f"@oven/bun-linux-{machine}"

    def fill(folder: Path) -> None:
        quiet = ("--silent", "--ignore-scripts", "--no-audit", "--no-fund")
        subprocess.run([npm, "install", *quiet, "--prefix", folder, f"{package}@{VERSION}"], check=True)

    folder = cached_folder(paths.ROOT / ".cache" / "edge", "bun", f"{package} {VERSION}", fill)
    return str(folder / "node_modules" / package / "bin" / "bun")


def asks(url: str, trusted: Path) -> str:
    """Return what Bun says of a URL with these authorities: a status, or the code of an error."""
    words = ["timeout", str(LIFE_S), bun(), "-e", PROGRAM, url]
    env = {"PATH": os.defpath, "HOME": str(trusted.parent), "NODE_EXTRA_CA_CERTS": str(trusted)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
