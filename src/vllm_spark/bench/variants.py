"""The variants of a server that a profile measures: for each, the cells, and the inventory that deploys it. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.node.bench.records import Cell


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of the server, and the cells that are measured with it. `server` is {} for the server as it is."""

    server: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def is_start(self) -> bool:
        """Whether the variant is a start, which is measured itself."""
        return "start" in self.server

    def to_json(self) -> dict[str, Any]:
        """Return the variant as an action returns it."""
        return {"server": dict(self.server), "label": label(self.server), "cells": list(self.cells)}


def _speculative_tokens(value: Any) -> Document:
    return {"drafter": {"speculative_tokens": value}}


def _mode(value: Any) -> Document:
    # A null removes the recipe's own flag.
    return {"args": {"enforce-eager": True if value == "eager" else None}}


# The overrides of a deployment that make a change of the server. A start (`start: cold`) changes no override.
OVERRIDES: Mapping[str, Callable[[Any], Document]] = {"speculative_tokens": _speculative_tokens, "mode": _mode}


def of_cells(cells: Iterable[Cell]) -> list[Variant]:
    """Return the variants in the order of their first cells. Cells with the same change share one restart."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(label(cell["server"]), []).append(cell)
    return [Variant(group[0]["server"], tuple(group)) for group in groups.values()]


def label(server: Mapping[str, Any]) -> str:
    """Return a change in words, for example `speculative_tokens=4`; empty for the server as it is."""
    return " ".join(f"{name}={value}" for name, value in server.items())


def impossible(server: Mapping[str, Any], recipe: Document) -> str:
    """Return why a recipe cannot have this change, or an empty text."""
    if "speculative_tokens" in server and not recipe.get("drafter"):
        return "the recipe has no drafter"
    return ""


def inventory(deployments: Sequence[Document], name: str, server: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `vllm_deployments` in which the deployment `name` has the change on top of its own overrides."""
    changed = [dict(copy.deepcopy(deployment)) for deployment in deployments]
    for deployment in changed:
        if deployment["name"] == name:
            overrides = dict(deployment.get("overrides") or {})
            for key, value in server.items():
                for block, keys in OVERRIDES[key](value).items():
                    overrides[block] = {**(overrides.get(block) or {}), **keys}
            deployment["overrides"] = overrides
    return changed
