"""What several owners reported of one stream of one checkpoint (reports.yml): the spread, not the best alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from vllm_spark.core import strict_yaml
from vllm_spark.core.types import Document

FILE = Path(__file__).with_name("reports.yml")


@cache
def entries() -> list[dict[str, Any]]:
    """Return the rows of the file."""
    rows: list[dict[str, Any]] = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return rows


def spread(recipe: Document) -> str:
    """Return the least and the greatest speed in tok/s that owners reported of a recipe's checkpoint with its number of
    drafted tokens on as many Sparks, and how many owners; empty if fewer than two did."""
    drafted = recipe.get("drafter", {}).get("speculative_tokens", 0)
    wanted = (recipe["model"]["repository"], drafted, recipe["topology"]["nodes"])
    for entry in entries():
        if (entry["repository"], entry["drafted"], entry["sparks"]) == wanted:
            speeds = [speed for some in entry["owners"].values() for speed in some]
            return f"{min(speeds):g} to {max(speeds):g} of {len(entry['owners'])} owners"
    return ""
