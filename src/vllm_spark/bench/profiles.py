"""Profiles: the cells that a run of the bench measures. A file in profiles/ is a profile; no other place names it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, near_names, schema, text
from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.node.bench.records import Cell
from vllm_spark.node.bench.repeat import Rules

UNKNOWN_PROFILE = register("unknown-profile", runbook="bench-refused")
BAD_PROFILE = register("bad-profile", runbook="bench-refused")
BAD_RULE = register("bad-rule", runbook="bench-refused")

FOLDER = Path(__file__).with_name("profiles")
SCHEMA = Path(__file__).with_name("profile.schema.json")

# Greedy, so that two runs of the same prompt give the same text.
SAMPLING: Mapping[str, Any] = {"temperature": 0}
# The fields of a row in the order of the product: a change of the server takes minutes and comes last.
FIELDS: Mapping[str, Any] = {
    "server": {}, "sampling": SAMPLING, "corpus": None, "prompt": None, "output": None, "depth": 0, "streams": 1,
    "role": None, "documents": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile that passed its schema and the rules between its fields.

    `document` has what decides the figures of a run. `recipes` is cell -> the recipes of which a field report has a
    figure; empty for a profile that measures every recipe.
    """

    name: str
    summary: str
    source: str
    rules: Rules
    cells: tuple[Cell, ...]
    document: Document
    recipes: Mapping[str, frozenset[str]]

    def of_recipe(self, recipe: str) -> tuple[Cell, ...]:
        """Return the cells to measure with a recipe."""
        return tuple(cell for cell in self.cells if not self.recipes or recipe in self.recipes[cell["id"]])


def names(folder: Path = FOLDER) -> dict[str, Path]:
    """Return every profile: name -> file."""
    return {file.stem: file for file in sorted(folder.glob("*.yml"))}


def load(name: str, rules: Mapping[str, float] | None = None, folder: Path = FOLDER) -> Profile:
    """Read a profile by name. `rules` replaces rules that the profile has, e.g. {"hours": 2}. Raises RefusedError with
    every fault of it."""
    known = names(folder)
    if name not in known:
        close = near_names.close_names(name, known)
        raise UNKNOWN_PROFILE.error(
            what=f"unknown profile {text.quoted(name)}",
            expected=f"one of {', '.join(known)}",
            fix=near_names.choice(close or known),
        )
    return read(known[name], rules or {})


def read(file: Path, rules: Mapping[str, float]) -> Profile:
    """Read and check one profile file. Raises RefusedError with every fault of it."""
    try:
        document = documents.read_yaml(file)
    except DocumentError as error:
        raise RefusedError([_refusal(file, error.fault)]) from error
    faults = list(schema.faults(document, SCHEMA)) or list(_faults(document, file.stem))
    if faults:
        raise RefusedError(_refusal(file, fault) for fault in faults)
    return _with_rules(_profile(document), rules)


def cells_of(row: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of one row: every combination of the values of its fields."""
    lists = {field: _listed(row.get(field, usual)) for field, usual in FIELDS.items()}
    combinations = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return [_cell(combination) for combination in combinations]


def cell_id(cell: Mapping[str, Any]) -> str:
    """Return the id of a cell, e.g. `chat p2048 o128 d0 s1` and `code p512 o512 d0 s1 speculative_tokens=4`."""
    unusual = {name: value for name, value in cell["sampling"].items() if SAMPLING.get(name) != value}
    changes = " ".join(f"{name}={_short(value)}" for name, value in {**unusual, **cell["server"]}.items())
    lengths = f"p{cell['prompt']} o{cell['output']} d{cell['depth']} s{cell['streams']}"
    if cell.get("role"):
        lengths = f"{cell['role']} p{cell['prompt']} n{cell['documents']} s{cell['streams']}"
    return f"{cell['corpus']} {lengths} {changes}".rstrip()


def _profile(document: Document) -> Profile:
    return Profile(
        document["name"],
        document["summary"],
        document["source"],
        Rules(**document["rules"]),
        tuple(cell for row in document["cells"] for cell in cells_of(row)),
        _measured(document),
        _recipes(document["cells"]),
    )


def _measured(document: Document) -> Document:
    """Return the document without what reports measured, which changes no figure of a run."""
    rows = [{key: value for key, value in row.items() if key != "figures"} for row in document["cells"]]
    return {**{key: value for key, value in document.items() if key != "not_measured"}, "cells": rows}


def _recipes(rows: Sequence[Document]) -> dict[str, frozenset[str]]:
    if not any("figures" in row for row in rows):
        return {}
    named = [(row, frozenset(figure["recipe"] for figure in row.get("figures", []))) for row in rows]
    return {cell["id"]: recipes for row, recipes in named for cell in cells_of(row)}


def _cell(values: Mapping[str, Any]) -> Cell:
    cell = Cell(
        id=cell_id(values),
        corpus=values["corpus"],
        prompt=values["prompt"],
        output=values["output"],
        depth=values["depth"],
        streams=values["streams"],
        sampling=dict(values["sampling"]),
        server=dict(values["server"]),
    )
    if values["role"]:
        cell["role"], cell["documents"] = values["role"], values["documents"]
    return cell


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _short(value: Any) -> str:
    """Return a value of an id without blanks. A map is its names and values."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{_short(each)}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _faults(document: Document, stem: str) -> Iterator[Fault]:
    """Yield what the schema cannot express."""
    if document["name"] != stem:
        yield Fault(f"name: {document['name']}", f"{stem}, the name of the file")
    rules = document["rules"]
    if rules["least_runs"] > rules["most_runs"]:
        yield Fault(f"rules.least_runs: {rules['least_runs']}", f"at most most_runs, which is {rules['most_runs']}")
    if 0 < rules.get("limit_runs", 0) < rules["most_runs"]:
        yield Fault(f"rules.limit_runs: {rules['limit_runs']}", f"at least most_runs, which is {rules['most_runs']}")
    counts = Counter(cell["id"] for row in document["cells"] for cell in cells_of(row))
    for id_, times in counts.items():
        if times > 1:
            yield Fault(f"cells: {id_} occurs {times} times", "every cell once")


def _with_rules(profile: Profile, rules: Mapping[str, float]) -> Profile:
    """Return the profile with other rules. Raises RefusedError for a rule that it does not have."""
    if not rules:
        return profile
    unknown: Sequence[str] = [name for name in rules if name not in profile.document["rules"]]
    if unknown:
        raise RefusedError(
            BAD_RULE(
                what=f"the profile {profile.name} has no rule {text.quoted(name)}",
                expected=f"one of {', '.join(profile.document['rules'])}",
                fix=near_names.choice(
                    near_names.close_names(name, profile.document["rules"]) or profile.document["rules"]
                ),
            )
            for name in unknown
        )
    document = {**profile.document, "rules": {**profile.document["rules"], **rules}}
    faults = list(schema.faults(document, SCHEMA)) or list(_faults(document, profile.name))
    if faults:
        raise RefusedError(
            BAD_RULE(what=fault.what, expected=fault.expected, fix="give another value.") for fault in faults
        )
    return replace(profile, rules=Rules(**document["rules"]), document=document)


def _refusal(file: Path, fault: Fault) -> Refusal:
    return BAD_PROFILE(what=f"{file.name}: {fault.what}", expected=fault.expected, fix=f"correct {file}.")
