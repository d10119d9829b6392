"""What an operator reads while an image arrives, and when it does not. Pure."""

from __future__ import annotations

from vllm_spark import memory, progress
from vllm_spark.progress import Phase, Progress
from vllm_spark.refusal import message


def headline(arrived_bytes: int, elapsed_s: float, deadline_s: float) -> str:
    """E.g. `pulling (3.1 GiB on disk)  00:41 of 1:00:00`. Layers count once unpacked, so it moves in steps."""
    return progress.headline(
        Progress(Phase.PULLING, detail=f"{memory.gib(max(arrived_bytes, 0))} on disk"), elapsed_s, deadline_s
    )


def failure(image: str, said: str) -> str:
    """Why a pull failed."""
    return message(
        f"pulling {image} failed: {said or 'the job ended without a word'}",
        "the registry to serve this digest",
        "try `docker pull` of it on the box; a digest that is gone needs a new one in the recipe or the lock file.",
        runbook="image-pull",
    )
