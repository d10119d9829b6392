"""Recipes: loading, checking, and the merge with a deployment's overrides.

A recipe stays a mapping. recipes/schema.json is the only definition of its shape, and code that gets a loaded recipe
relies on that shape.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core import documents, near_names, paths, schema
from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import architecture, flag_names, held_weights, rules, shared_gates

UNKNOWN_RECIPE = register("unknown-recipe", runbook="recipe-refused")
BAD_RECIPE = register("bad-recipe", runbook="recipe-refused")

SCHEMA = paths.RECIPES / "schema.json"
# A template or a patch beside a recipe.
MAX_FILE_BYTES = 1 << 20

# A refusal lists this many names of recipes, and the number of more.
LISTED = 8

# Stems of files in a recipe folder that are not recipes.
NOT_RECIPES = {"compatibility", "gates", "licences", "variables"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe that passed its schema and the rules between its fields.

    `files` holds the toolkit's files that its mounts and patches name: path relative to the recipe's folder -> content.
    """

    document: Document
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def sha256(self) -> str:
        """Hash of the content and not of the file, so that a comment or a line break does not change it."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()


def names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return every recipe in the folders: name -> file. The first folder that has a name wins."""
    files: dict[str, Path] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.yml")):
            if file.stem not in NOT_RECIPES:
                files.setdefault(file.stem, file)
    return files


def relatives(recipe: Document, folders: Sequence[Path]) -> dict[str, Path]:
    """Return the recipes whose text names a model of the same family, as `names` does: all that the toolkit proposes
    of the family, and perhaps others. A recipe without an architecture has none."""
    if "architecture" not in recipe["model"]:
        return {}
    family = architecture.of_recipe(recipe, recipe["model"]["architecture"]).family
    files = [file for folder in folders for file in (folder / "architectures").glob("*.yml")]
    # A recipe that brings its own architecture has the name of the family.
    kin = [family, *(file.stem for file in files if family in file.read_text(errors="replace"))]
    texts = {name: file.read_text(errors="replace") for name, file in names(folders).items()}
    named = {name: text for name, text in texts.items() if any(one in text for one in kin)}
    return {name: names(folders)[name] for name, text in named.items() if "\nkept_for:" not in text}


def load(name: str, folders: Sequence[Path] = (paths.RECIPES,)) -> Recipe:
    """Read a recipe by name. Raises RefusedError with every fault of it."""
    known = names(folders)
    if name not in known:
        close = near_names.close_names(name, known)
        searched = ", ".join(str(folder.resolve()) for folder in folders)
        raise UNKNOWN_RECIPE.error(
            what=f"unknown recipe {name} (searched: {searched})",
            expected=_expected_of_name(close, known),
            fix=_fix_of_name(close, known),
        )
    return read(known[name])


def _expected_of_name(close: Sequence[str], known: Mapping[str, Path]) -> str:
    if len(close) == 1:
        return close[0]
    if len(known) > LISTED:
        return f"one of the {len(known)} recipes of these folders"
    return f"one of {', '.join(known)}" if known else "a folder with recipes, NAME.yml"


def _fix_of_name(close: Sequence[str], known: Mapping[str, Path]) -> str | Fix:
    """The name stands in an inventory, or was typed."""
    if close:
        return near_names.choice(close)
    if known:
        return Fix("vllm-spark recipes", "It lists the names.")
    return "name the folder in vllm_recipe_folders, or delete that variable: the clone's recipes are its default."


def read(file: Path, named: Path | None = None) -> Recipe:
    """Read and check one recipe file. Raises RefusedError with every fault of it, which name the file `named` if a
    person wrote that one."""
    try:
        document = documents.read_yaml(file)
    except DocumentError as error:
        raise RefusedError([_refusal(named or file, error.fault)]) from error
    recipe, faults = checked(document, file.parent, file.stem)
    if faults:
        raise RefusedError(_refusal(named or file, fault) for fault in faults)
    return recipe


def checked(document: Document, folder: Path, stem: str) -> tuple[Recipe, list[Fault]]:
    """Return the recipe of a document in a folder, and every fault of it. With a fault the recipe is not complete."""
    faults = list(schema.faults(document, SCHEMA))
    if faults:
        return Recipe(document), faults
    document, architecture_faults = _with_architectures(document, folder)
    faults += architecture_faults
    faults += shared_gates.faults(document)
    document = shared_gates.expanded(document)
    faults += rules.recipe_faults(document, stem)
    document = with_flag_names(document, document["engine"]["version"])
    faults += rules.value_faults(document)
    files, file_faults = _toolkit_files(document, folder)
    faults += file_faults
    faults += _evidence_faults(document, folder)
    return Recipe(document, files), faults


def _with_architectures(document: Document, folder: Path) -> tuple[Document, list[Fault]]:
    """Return the recipe with the architectures beside it that it names, and the faults of those that it brings."""
    own = dict(document.get("architectures", {}))
    faults = [
        Fault(f"architectures.{name}: {fault.what}", fault.expected)
        for name, brought in own.items()
        for fault in architecture.document_faults(brought, name)
    ]
    if folder.resolve() != paths.RECIPES:
        for name in (
            document[key]["architecture"] for key in ("model", "drafter") if "architecture" in document.get(key, {})
        ):
            file = folder / "architectures" / f"{name}.yml"
            if name not in own and file.is_file():
                own[name] = architecture.read_document(file)
    return ({**document, "architectures": own} if own else document), faults


def _toolkit_files(document: Document, folder: Path) -> tuple[dict[str, str], list[Fault]]:
    """Read the files of a recipe's folder that its mounts and patches name: (path -> content, faults)."""
    entries = [("mounts", mount) for mount in document.get("mounts", []) if mount["from"] == "toolkit"]
    entries += [("patches", patch) for patch in document.get("patches", [])]
    files: dict[str, str] = {}
    faults: list[Fault] = []
    for block, entry in entries:
        source, place = folder / entry["path"], f"{block}: {entry['path']}"
        if "sha256" not in entry:
            faults.append(Fault(f"{place} has no sha256", "a sha256, because the file is beside the recipe"))
        elif not source.is_file():
            faults.append(Fault(f"{place} is not a file beside the recipe", f"{source}"))
        else:
            try:
                files[entry["path"]] = content = documents.read_text(source, MAX_FILE_BYTES)
            except DocumentError as error:
                faults.append(Fault(f"{place}: {error.fault.what}", error.fault.expected))
                continue
            digest = hashlib.sha256(content.encode()).hexdigest()
            if digest != entry["sha256"]:
                faults.append(Fault(f"{place} has sha256 {digest}", entry["sha256"]))
    return files, faults


def evidence_file(path: str, folder: Path) -> Path:
    """Return a file that an entry of `evidence` names. `folder` is the recipe's: the path begins above it.

    A copy of a recipe in another folder keeps the evidence of the toolkit, so that is the second place.
    """
    own = folder.resolve().parent / path
    return own if own.is_file() else paths.ROOT / path


def _evidence_faults(document: Document, folder: Path) -> Iterator[Fault]:
    """Yield the files of the bench that are missing. `vllm-spark check` reads them."""
    for number, entry in enumerate(document.get("evidence", [])):
        for path in entry.get("bench", []):
            if not (file := evidence_file(path, folder)).is_file():
                yield Fault(f"evidence[{number}].bench: {path} is not a file", str(file))


def merged_faults(document: Document, overrides: Document) -> Iterator[Fault]:
    """Yield the faults that a deployment's overrides cause in a recipe. `document` is the result of `merged`."""
    if overrides:
        shape = list(schema.faults(document, SCHEMA))
        yield from shape
        # Once more, because the recipe names the engine that decides what an abbreviation means.
        yield from rules.override_faults(document)
        yield from rules.value_faults(document)
        if "gates" in overrides and not shape:
            names = {
                name: True if value is None else value for name, value in overrides["gates"].get("use", {}).items()
            }
            yield from shared_gates.faults({"gates": {"use": names}})
            yield from rules.log_gates_faults(document)


def _refusal(file: Path, fault: Fault) -> Refusal:
    name = file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file
    return BAD_RECIPE(what=f"{name}: {fault.what}", expected=fault.expected, fix=f"correct {name}.")


def with_flag_names(document: Document, version: str) -> Document:
    """Return a recipe, or the overrides of one, with the flags of `args` in the spelling of the engine."""
    if "args" not in document:
        return document
    return {**document, "args": flag_names.canonical(document["args"], flag_names.engine_of(version))}


def merged(recipe: Recipe, overrides: Document) -> dict[str, Any]:
    """Return a copy of the recipe's document with a deployment's overrides. A null removes a key, or the drafter. What
    a flag makes of the weights follows the flag."""
    document = copy.deepcopy(dict(recipe.document))
    changed = dict(with_flag_names(overrides, document["engine"]["version"]))
    if "drafter" in changed and changed["drafter"] is None:
        del changed["drafter"]
        if document.pop("drafter", None):
            # What was measured with the drafter says nothing about the model without it.
            document.pop("expected", None)
    gates = dict(changed.pop("gates", {}))
    use = gates.pop("use", {})
    if gates:
        changed["gates"] = gates
    for block, changes in changed.items():
        target = dict(document.get(block, {}))
        for key, value in changes.items():
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value
        document[block] = target
    if use:
        _use_gates(document, use)
    held_weights.overridden(document, recipe.document)
    return document


def _use_gates(document: dict[str, Any], use: Document) -> None:
    """Give a recipe shared gates in place of its own of their names. None removes a gate."""
    gates = document["gates"]
    kept = [gate for gate in gates.get("log", []) if gate["id"] not in use]
    used = {name: value for name, value in use.items() if value is not None}
    document["gates"] = shared_gates.expanded({"gates": {**gates, "log": kept, "use": used}})["gates"]
    document["gates"].pop("use", None)
