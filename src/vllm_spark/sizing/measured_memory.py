"""What engines were seen to take (data/memory.yml), for the page and the tests that judge vllm_spark.sizing.memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.recipe import architecture
from vllm_spark.sizing import reported_speeds
from vllm_spark.sizing.memory import MemoryModel

FILE = Path(__file__).with_name("measured_memory.yml")


@cache
def _document() -> Mapping[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def of(group: str) -> Sequence[Mapping[str, Any]]:
    """The rows of one group: loaded, cache or reserved."""
    return _document()[group]  # type: ignore[no-any-return]


def model(entry: Mapping[str, Any]) -> MemoryModel:
    """What a row of `loaded` had loaded."""
    name = entry["architecture"]
    return MemoryModel(
        architecture=architecture.load(name),
        layout=reported_speeds.mixed(reported_speeds.document()["layouts"][entry["layout"]]),
        kv_width=1.0,
        vision=entry.get("vision", False),
        drafter=architecture.load(f"{name}-assistant") if entry.get("drafter") else None,
    )
