"""The question before a download: what comes, how long it takes, and the answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_spark.core.units import GB, clock
from vllm_spark.deploy.preview import Preview

QUESTION = "Download it and go on? (yes/no)"
DECLINED = "The answer was not yes, so nothing was downloaded or changed. Fix: answer yes, or `vllm-spark up --yes`."
# Connections to the internet, in bytes per second.
SPEEDS = {"1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}


def download(previews: Mapping[str, Preview]) -> str:
    """Return what the Sparks would download and how long that takes, or nothing. A model that several Sparks need comes
    once from the internet."""
    sizes: dict[str, int | None] = {}
    for preview in previews.values():
        if (spec := preview.spec) and (forecast := preview.forecast):
            known = forecast.download_bytes if forecast.download_known else None
            sizes[f"the model of {spec.recipe['name']}"] = known
        if spec and preview.plan and preview.plan.images.pulls:
            sizes[f"the image {spec.recipe['image']['repository']}"] = None
    parts = [what if size is None else f"{size / GB:.1f} GB for {what}" for what, size in sizes.items() if size != 0]
    known = sum(filter(None, sizes.values()))
    times = ", ".join(f"{clock(known / speed)} at {name}" for name, speed in SPEEDS.items())
    seconds = f" The {known / GB:.1f} GB take {times}." if known else ""
    return f"To download: {' and '.join(parts)}.{seconds}" if parts else ""


def agrees(answer: str) -> bool:
    """Return whether the answer of a person is a yes."""
    return answer.strip().lower() in {"y", "yes"}
