"""The speeds that a recipe's sources report. Pure."""

from __future__ import annotations

from vllm_spark.core.types import Document

# How the load of a figure of one stream begins.
ONE_STREAM = "one stream"


def fastest(document: Document) -> float | None:
    """Return the fastest decode of one stream that a source of the recipe measured."""
    speeds = [
        float(expected["value"])
        for expected in document.get("expected", [])
        if expected["metric"] == "decode" and expected["load"].startswith(ONE_STREAM)
    ]
    return max(speeds, default=None)
