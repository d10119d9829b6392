"""The recipes side by side: size, memory, speed foreseen and reported, engine, and whether all of it is pinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.core.units import GB
from vllm_spark.recipe import known_issues, loader, lockfile
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import forecast, memory, reference_spark
from vllm_spark.sizing.forecast import ForecastRequest


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe. Sizes in bytes, speeds in tokens per second of one stream; None where nobody knows."""

    name: str
    summary: str
    nodes: int
    engine: str
    download_bytes: int
    memory_bytes: int  # of each Spark, at the start's highest
    predicted: str
    reported: float | None
    open: tuple[str, ...]  # what `lock` has to resolve

    @property
    def locked(self) -> bool:
        return not self.open

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"locked": self.locked}


def entries(folders: Sequence[Path] = (paths.RECIPES,), locked: Lock | None = None) -> list[Entry]:
    """Every recipe of the folders, by name."""
    return [entry(loader.load(name, folders).document, locked or Lock()) for name in sorted(loader.names(folders))]


def entry(document: Document, locked: Lock) -> Entry:
    sources = [document["model"], document.get("drafter", {})]
    speed = forecast.predicted(document, ForecastRequest())
    return Entry(
        name=document["name"],
        summary=document["summary"],
        nodes=document["topology"]["nodes"],
        engine=document["engine"]["version"],
        download_bytes=sum(source.get("size_bytes", 0) for source in sources),
        memory_bytes=memory.needed_bytes(document, reference_spark.MEMORY["total"]),
        predicted=f"{speed.low:.0f} to {speed.high:.0f}" if speed else "",
        reported=reported(document),
        open=tuple(str(missing.ref) for missing in lockfile.missing_pins(document, locked)),
    )


def reported(document: Document) -> float | None:
    """The fastest decode of one stream that a source has measured."""
    found = [
        float(expected["value"])
        for expected in document.get("expected", [])
        if expected["metric"] == "decode" and expected["load"].startswith(forecast.ONE_STREAM)
    ]
    return max(found, default=None)


def cells(found: Entry) -> list[str]:
    """A row of the table, for a terminal and for the page."""
    return [
        found.name,
        str(found.nodes),
        found.engine,
        f"{found.download_bytes / GB:.1f}",
        f"{found.memory_bytes / GB:.0f}",
        found.predicted or "?",
        f"{found.reported:g}" if found.reported is not None else "?",
        "yes" if found.locked else "no",
    ]


COLUMNS = ("recipe", "Sparks", "vLLM", "download GB", "memory GB", "foreseen tok/s", "reported", "pinned")

HEAD = """\
# Recipes

Made by `vllm-spark docs` from `recipes/*.yml`; do not edit it. `vllm-spark recipes` prints the table with your lock
file. Memory is what a start takes of each Spark. Speeds are of one stream: foreseen as [prediction.md](prediction.md)
says, reported by the recipe's sources. A recipe that is not pinned needs `ansible-playbook lock.yml` first.
"""


def page() -> str:
    """docs/reference/recipes.md."""
    found = entries()
    parts = [HEAD, _table(found)]
    parts += [_section(loader.load(one.name).document, one) for one in found]
    return "\n".join(parts)


def _table(found: Sequence[Entry]) -> str:
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    linked = [[f"[{row[0]}](#{row[0].replace('.', '')})", *row[1:]] for row in map(cells, found)]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in linked)]) + "\n"


def _section(document: Document, found: Entry) -> str:
    model = document["model"]
    lines = [f"## {found.name}", "", f"{found.summary}.", ""]
    lines += [f"- Model: {model['repository']} at {model.get('revision', 'a commit that `lock` finds')}"]
    if "drafter" in document:
        drafter = document["drafter"]
        lines += [f"- Drafter: {drafter['repository']}, {drafter['speculative_tokens']} tokens ahead"]
    lines += [f"- Image: {lockfile.locked_name(document)}{_added(document)}"]
    lines += [f"- Source: {source}" for source in document.get("sources", [])]
    lines += [f"- Otherwise than its source: {said}" for said in document.get("corrections", [])]
    lines += [f"- To know: {issue['text']}" for issue in document.get("known_issues", [])]
    told = {issue["id"] for issue in document.get("known_issues", [])}
    more = [issue for issue in known_issues.matching_issues(known_issues.Subject(document)) if issue.id not in told]
    lines += [f"- To know: {issue.what} ({issue.id})" for issue in more]
    lines += [f"- `lock` has to resolve: {', '.join(found.open)}"] if found.open else []
    return "\n".join(lines) + "\n"


def _added(document: Document) -> str:
    derive = document["image"].get("derive", {})
    added = [*derive.get("pip", []), *(["Python sources over its own"] if "overlay" in derive else [])]
    added += [patch["path"].rpartition("/")[2] for patch in document.get("patches", [])]
    return f", with {', '.join(added)}" if added else ""
