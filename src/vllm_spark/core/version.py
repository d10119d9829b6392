"""The version of the toolkit: the package's version and the commit of the checkout."""

from __future__ import annotations

import subprocess
from importlib.metadata import version as distribution_version

from vllm_spark.core import paths


def version() -> str:
    """Return e.g. `0.1.0 (1a2b3c4d5e6f)`. The commit ends in `-dirty` if the checkout differs from it."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = git.stdout.strip() or "no commit"
    return f"{distribution_version('vllm-spark')} ({commit})"
