"""Which toolkit this is: version and commit of the checkout."""

from __future__ import annotations

import subprocess
from importlib.metadata import version as distribution_version

from vllm_spark.core import paths


def version() -> str:
    """E.g. `0.1.0 (1a2b3c4d5e6f)`; `-dirty` where the checkout differs from its commit."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = described.stdout.strip() or "no commit"
    return f"{distribution_version('vllm-spark')} ({commit})"
