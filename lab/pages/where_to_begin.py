"""The table "Where to begin" of README.md: for each use, the pinned recipe with the highest reported speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lab.pages.markdown import table
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.recipe import loader, proposed
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import catalogue, reports
from vllm_spark.sizing.uses import USES, Use, figure_of, has_gates

BEGIN = "<!-- `make docs` writes the lines up to the next comment from recipes/*.yml. -->"
END = "<!-- end of the written lines -->"
COLUMNS = ("you have", "best for", "use", "tok/s", "measured with", "source")
SPARKS = {1: "one Spark", 2: "two Sparks"}


def readme(text: str) -> str:
    """Return README.md with the table of today. Raises ValueError if it has no place for it."""
    return placed(text, BEGIN, written(pinned()))


def placed(text: str, begin: str, lines: str) -> str:
    """Return a text with lines between `begin` and the next END. Raises ValueError if it has no place for them."""
    head, found, rest = text.partition(begin)
    _, end, tail = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no lines {begin} and {END} between which the table stands")
    return f"{head}{begin}\n\n{lines}\n\n{END}{tail}"


def pinned() -> list[Document]:
    """Return the recipes of the catalogue that need no lock file and that the toolkit proposes."""
    documents = (loader.load(name).document for name in sorted(loader.names([paths.RECIPES])))
    offered = (document for document in documents if proposed.is_proposed(document))
    return [document for document in offered if catalogue.entry(document, Lock()).locked]


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
            rated = best(documents, use, nodes)
            if rated:
                figure, name = rated
                others = reports.spread(next(one for one in documents if one["name"] == name))
                speed = f"{figure['value']:g}" + f" ({others})" * bool(others and use.streams == 1)
                yield [have, use.name, f"`{name}`", speed, figure["load"], figure["source"]]


def best(documents: Sequence[Document], use: Use, nodes: int) -> tuple[Mapping[str, Any], str] | None:
    """Return the highest reported figure for a use on so many Sparks, with the recipe's name; None without one."""
    fitting = [one for one in documents if one["topology"]["nodes"] == nodes and has_gates(one, use)]
    rated = [(figure, one["name"]) for one in fitting if (figure := figure_of(one, use.streams))]
    return max(rated, key=_speed, default=None)


def _speed(rated: tuple[Mapping[str, Any], str]) -> float:
    return float(rated[0]["value"])
