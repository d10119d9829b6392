"""Families of models: what the toolkit knows of an architecture before a recipe exists. Data of recipes/families.

A family is one file; it needs no registration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, paths, schema, text
from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document

BAD_FAMILY = register("bad-family", runbook="recipe-new")
UNKNOWN_FAMILY = register("unknown-family", runbook="recipe-new")

FOLDER = paths.RECIPES / "families"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions of a family's rows are judged by. `widths` has the name of each part's width."""

    repository: str
    model_types: Sequence[str]
    widths: Mapping[str, str]
    nodes: int
    own_head: bool
    image: str = ""


@lru_cache
def load(folder: Path = FOLDER) -> tuple[Document, ...]:
    """Read and check every family. Raises RefusedError with every fault."""
    families, refusals = [], []
    for file in sorted(folder.glob("*.yml")):
        try:
            document = documents.read_yaml(file)
            faults = list(schema.faults(document, FOLDER / "schema.json"))
        except DocumentError as error:
            document, faults = {}, [error.fault]
        if not faults and document["name"] != file.stem:
            faults = [Fault(f"name: {document['name']}", f"{file.stem}, the file's stem")]
        families.append(document)
        refusals += [
            BAD_FAMILY(what=f"{file.name}: {fault.what}", expected=fault.expected, fix=f"correct {file}.")
            for fault in faults
        ]
    if refusals:
        raise RefusedError(refusals)
    return tuple(families)


def additions(repository: str) -> Document:
    """Return what a family adds to each recipe of a repository; empty if nothing is known."""
    added = (one["adds"] for one in load() if "adds" in one)
    return next((adds for adds in added if re.search(adds["repository"], repository)), {})


def model_types(config: Mapping[str, Any]) -> list[str]:
    """Return the model_type of a config.json: of the whole model, then of its language model."""
    text = config.get("text_config")
    found = [config.get("model_type"), text.get("model_type") if isinstance(text, Mapping) else None]
    return [str(name) for name in found if name]


def of_config(name: str, config: Mapping[str, Any]) -> Document:
    """Return the family of a config.json. Raises RefusedError if there is none. `name` is the checkpoint's."""
    types = model_types(config)
    for family in load():
        if types and types[0] in family["model_types"] and types[-1] in family.get("text_types", types):
            return family
    raise RefusedError([_unknown(name, types)])


def _unknown(name: str, types: Sequence[str]) -> Refusal:
    known = sorted({known for family in load() for known in family["model_types"]})
    what = (
        f"{name} has the model_type {text.one_line(' with '.join(types))}"
        if types
        else f"config.json of {name} has no model_type"
    )
    return UNKNOWN_FAMILY(
        what=f"{what}, which no family of recipes/families knows",
        expected=f"one of {', '.join(known)}",
        fix="write recipes/families/NAME.yml for it (docs/operations/any-model.md, section A new family).",
    )


def applies(when: Document, facts: Facts) -> bool:
    """Return True if every condition of a row is true."""
    return all(CONDITIONS[name](value, facts) for name, value in when.items())


CONDITIONS: Mapping[str, Callable[[Any, Facts], bool]] = {
    "repository": lambda value, facts: bool(re.search(value, facts.repository)),
    "model_type": lambda value, facts: any(re.fullmatch(value, name) for name in facts.model_types),
    "experts": lambda value, facts: facts.widths.get("experts") == value,
    "attention": lambda value, facts: facts.widths.get("attention") == value,
    "nodes": lambda value, facts: min(facts.nodes, 2) == value,
    "image": lambda value, facts: bool(re.search(value, facts.image)),
    "own_head": lambda value, facts: facts.own_head == value,
}


def rows(family: Document, key: str, facts: Facts) -> list[Document]:
    """Return the rows of a list of the family whose conditions are true."""
    return [row for row in family.get(key, ()) if applies(row.get("when", {}), facts)]


def parser(rows: Iterable[Document], template: str, types: Sequence[str]) -> Document | None:
    """Return the first parser whose format is in the chat template, or None."""
    for row in rows:
        typed = "model_type" not in row or any(re.fullmatch(row["model_type"], name) for name in types)
        if typed and re.search(row.get("template", ""), template):
            return row
    return None
