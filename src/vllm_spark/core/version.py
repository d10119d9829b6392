"""The version of the toolkit: the package's version and its commit."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib import resources
from importlib.metadata import version as distribution_version

from vllm_spark.core import paths


@cache
def version() -> str:
    """Return e.g. `0.1.0 (1a2b3c4d5e6f)`. The commit ends in `-dirty` if the checkout differs from it. A release
    has that of its sources. Another copy that is no checkout, and a machine without git, have no commit. A process asks
    git once."""
    return f"{distribution_version('vllm-spark')} ({_commit() or 'no commit'})"


def _commit() -> str:
    # git archive writes it, and make dist begins with that.
    released = resources.files("vllm_spark.core").joinpath("commit.txt").read_text(encoding="ascii").strip()
    if not released.startswith("$"):
        return released[:12]
    if not (paths.ROOT / ".git").exists():
        return ""  # git would name the commit of a repository around it
    argv = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        git = subprocess.run(argv, cwd=paths.ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        return ""
    return git.stdout.strip()
