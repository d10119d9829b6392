"""Licences of models, from recipes/licences.yml: what an owner agrees to with a download."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from vllm_spark.core import documents, paths
from vllm_spark.core.types import Document

FILE = paths.RECIPES / "licences.yml"


@cache
def rows() -> tuple[Document, ...]:
    """Return the rows of the file, in its order."""
    return tuple(documents.read_yaml(FILE)["licences"])


def of(repository: str) -> str:
    """Return the licence of a model in words, or where it stands."""
    row = next((row for row in rows() if re.search(row["models"], repository)), None)
    if row is None:
        return f"not known here, see huggingface.co/{repository}"
    return f"{row['licence']}. {row['terms']}" if "terms" in row else str(row["licence"])


def lines(recipe: Document) -> Iterator[str]:
    """Yield the licence of the model, and of a drafter from another repository."""
    names = dict.fromkeys(recipe[part]["repository"] for part in ("model", "drafter") if part in recipe)
    yield from (f"licence of {name}: {of(name)}" for name in names)
