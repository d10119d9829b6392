"""Log gates that recipes share: recipes/gates.yml, added to each recipe whose `gates.use` names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from vllm_spark.core import documents, near_names, paths
from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document

FILE = paths.RECIPES / "gates.yml"


@lru_cache
def load(file: Path = FILE) -> Mapping[str, Document]:
    """Return the shared gates: name -> {pattern, why, expect, lines}."""
    gates: Mapping[str, Document] = documents.read_yaml(file)["gates"]
    return gates


def expanded(document: Document) -> Document:
    """Return the recipe with each gate of `gates.use` written out in `gates.log`, after the recipe's own."""
    gates = dict(document["gates"])
    used = gates.pop("use", {})
    if not used:
        return document
    log = [*gates.get("log", []), *(_log_gate(name, value) for name, value in used.items() if name in load())]
    return {**document, "gates": {**gates, "log": log}}


def faults(document: Document) -> Iterator[Fault]:
    """Yield a fault for each name of `gates.use` that is not a shared gate, or whose value does not fit the gate."""
    known = load()
    for name, value in document["gates"].get("use", {}).items():
        if name not in known:
            close = near_names.close_names(name, known)
            yield Fault(f"gates.use.{name}: unknown", close[0] if close else f"one of {', '.join(known)}")
        elif value is not True and "(?P<value>" not in known[name]["pattern"]:
            yield Fault(f"gates.use.{name}: {value}", "true, because this gate has no value")


def _log_gate(name: str, value: object) -> Document:
    shared = load()[name]
    gate = {"id": name, **{key: shared[key] for key in ("pattern", "expect", "why") if key in shared}}
    if isinstance(value, str):
        return {**gate, "equals": value}
    return gate if value is True else {**gate, "at_least": value}
