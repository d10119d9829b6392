"""The recipes side by side: size, memory, predicted and reported speed, engine, and missing pins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.core.units import GB
from vllm_spark.recipe import loader, lockfile, published_image
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import expected, forecast, host_files, memory, reference_spark
from vllm_spark.sizing.forecast import ForecastRequest

# The speeds stand beside the name, where a narrow screen shows them.
COLUMNS = (
    "recipe",
    "forecast tok/s",
    "reported tok/s",
    "Sparks",
    "vLLM",
    "download GB",
    "memory GB",
    "pinned",
    "kept for",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe. Sizes are in bytes, speeds in tokens per second of one stream.

    `memory_bytes` is the peak of a start on each Spark. `predicted` is empty and `reported` is None if unknown. `open`
    names what `lock` must resolve. `kept_for` is the field report whose system the recipe is, if it is in the catalogue
    for that alone.
    """

    name: str
    summary: str
    nodes: int
    engine: str
    # None if the size of a part is not known.
    download_bytes: int | None
    memory_bytes: int
    predicted: str
    reported: float | None
    open: tuple[str, ...]
    kept_for: str

    @property
    def locked(self) -> bool:
        return not self.open

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"locked": self.locked}


def entries(folders: Sequence[Path] = (paths.RECIPES,), locked: Lock | None = None) -> list[Entry]:
    """Return every recipe of the folders, by name. `locked` is the content of a lock file."""
    return [entry(loader.read(file).document, locked or Lock()) for _, file in sorted(loader.names(folders).items())]


def entry(document: Document, locked: Lock) -> Entry:
    """Return the entry of one recipe."""
    sizes = [host_files.size(document, source) for source in host_files.sources(document)]
    speed = forecast.predicted(document, ForecastRequest())
    return Entry(
        name=document["name"],
        summary=document["summary"],
        nodes=document["topology"]["nodes"],
        engine=published_image.engine(document),
        download_bytes=sum(sizes) if all(sizes) else None,
        memory_bytes=memory.needed_bytes(document, reference_spark.MEMORY["total"]),
        predicted=speed.cell() if speed else "",
        reported=expected.fastest(document),
        open=tuple(str(missing.ref) for missing in lockfile.missing_pins(document, locked)),
        kept_for=document.get("kept_for", ""),
    )


def cells(entry: Entry) -> list[str]:
    """Return a row of the table, for a terminal and for the page."""
    return [
        entry.name,
        entry.predicted or "?",
        f"{entry.reported:g}" if entry.reported is not None else "?",
        str(entry.nodes),
        entry.engine,
        f"{entry.download_bytes / GB:.1f}" if entry.download_bytes else "?",
        f"{entry.memory_bytes / GB:.0f}",
        "yes" if entry.locked else "no",
        entry.kept_for,
    ]
