"""Log gates that recipes share: recipes/gates.yml, put into a recipe where its `gates.use` names them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.core import paths
from vllm_spark.core.types import Document

FILE = paths.RECIPES / "gates.yml"


@lru_cache
def load(file: Path = FILE) -> Mapping[str, Any]:
    """name -> {pattern, why, expect, lines}."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))["gates"]  # type: ignore[no-any-return]


def expanded(document: Document) -> Document:
    """The recipe with each gate of `gates.use` written out in `gates.log`, after the recipe's own."""
    gates = dict(document["gates"])
    used = gates.pop("use", {})
    if not used:
        return document
    log = [*gates.get("log", []), *(_written_out(name, value) for name, value in used.items() if name in load())]
    return {**document, "gates": {**gates, "log": log}}


def faults(document: Document) -> Iterator[str]:
    """Names that the library has not. Yields `<path>: <value> — expected: <what>`."""
    known = load()
    for name, value in document["gates"].get("use", {}).items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            yield f"gates.use.{name}: unknown — expected: {close[0] if close else 'one of ' + ', '.join(known)}"
        elif value is not True and "(?P<value>" not in known[name]["pattern"]:
            yield f"gates.use.{name}: {value} — expected: true, because this gate has no value"


def _written_out(name: str, value: object) -> Document:
    known = load()[name]
    gate = {"id": name, **{key: known[key] for key in ("pattern", "expect", "why") if key in known}}
    if isinstance(value, str):
        return {**gate, "equals": value}
    return gate if value is True else {**gate, "at_least": value}
