"""The table "Where to begin" of README.md: for each use, the pinned recipe with the highest reported speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.pages.markdown import table
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.recipe import loader
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import catalogue

BEGIN = "<!-- `make docs` writes the lines up to the next comment from recipes/*.yml. -->"
END = "<!-- end of the written lines -->"
COLUMNS = ("you have", "best for", "use", "tok/s", "measured with", "source")
SPARKS = {1: "one Spark", 2: "two Sparks"}


@dataclass(frozen=True, slots=True)
class Use:
    """A use: the gates that a recipe for it has, and the streams of the figure that decides."""

    name: str
    gates: tuple[str, ...] = ()
    streams: int = 1


USES = (
    Use("chat"),
    Use("code with tools", gates=("tools", "structured", "reasoning")),
    Use("pictures", gates=("vision",)),
    Use("many streams", streams=8),
)


def readme(text: str) -> str:
    """Return README.md with the table of today. Raises ValueError if it has no place for it."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no lines {BEGIN} and {END} between which the table stands")
    return f"{head}{BEGIN}\n\n{written(pinned())}\n\n{END}{tail}"


def pinned() -> list[Document]:
    """Return the recipes of the catalogue that need no lock file."""
    documents = (loader.load(name).document for name in sorted(loader.names([paths.RECIPES])))
    return [document for document in documents if catalogue.entry(document, Lock()).locked]


def written(documents: Sequence[Document], uses: Iterable[Use] = USES) -> str:
    """Return the table. Uses with one recipe and figure share a row. A use without a figure has no row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for have, use, *others in _rows(documents, uses):
        rows.setdefault((have, *others), []).append(use)
    return table(COLUMNS, ([have, ", ".join(names), *others] for (have, *others), names in rows.items()))


def _rows(documents: Sequence[Document], uses: Iterable[Use]) -> Iterator[list[str]]:
    uses = tuple(uses)
    for nodes, have in SPARKS.items():
        for use in uses:
            fitting = [one for one in documents if one["topology"]["nodes"] == nodes and _has_gates(one, use)]
            rated = [(figure, one["name"]) for one in fitting if (figure := figure_of(one, use.streams))]
            if rated:
                figure, name = max(rated, key=_speed)
                yield [have, use.name, f"`{name}`", f"{figure['value']:g}", figure["load"], figure["source"]]


def _has_gates(document: Document, use: Use) -> bool:
    return set(use.gates) <= set(document["gates"])


def figure_of(document: Document, streams: int) -> Mapping[str, Any] | None:
    """Return the reported decode speed with so many streams, or None."""
    figures = (one for one in document.get("expected", ()) if one["metric"] == "decode" and one["unit"] == "tok/s")
    return next((one for one in figures if one.get("cell", {}).get("streams") == streams), None)


def _speed(rated: tuple[Mapping[str, Any], str]) -> float:
    return float(rated[0]["value"])
