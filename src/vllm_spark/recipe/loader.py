"""Recipes: loading, checking, and the merge with a deployment's overrides.

A recipe stays the mapping that its schema describes (recipes/schema.json): the schema is the one place
that says its shape, and everything here may rely on a document that passed it.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from vllm_spark.core import paths, schema
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import shared_gates

UNKNOWN_RECIPE = register("unknown-recipe", runbook="recipe-refused")
BAD_RECIPE = register("bad-recipe", runbook="recipe-refused")


# Flags that the plan sets from the deployment, the topology and the memory block: in `args` they would
# be a second, contradicting source.
PLANNED_FLAGS = {
    "model": "model.repository",
    "revision": "model.revision",
    "served-model-name": "model.served_name",
    "speculative-config": "drafter",
    "host": "the deployment's bind",
    "port": "the deployment's port",
    "api-key": "vllm_secrets.VLLM_API_KEY",
    "tensor-parallel-size": "topology.tensor_parallel",
    "distributed-executor-backend": "topology.executor",
    "nnodes": "topology.nodes",
    "node-rank": "the order of the deployment's hosts",
    "master-addr": "the fabric address of the first host",
    "master-port": "the deployment",
    "headless": "the order of the deployment's hosts",
    "gpu-memory-utilization": "memory.utilization",
    "kv-cache-memory-bytes": "memory.kv_cache_bytes",
}

RAY_PIN = re.compile(r"ray(\[[a-z,]+\])?==")

# Variables whose values are secrets: they belong in vllm_secrets, which reaches one 0600 file only.
SECRET_NAME = re.compile(r"(TOKEN|API_KEY|PASSWORD|SECRET)$")


# Files that lie beside the recipes and are none.
BESIDE = {"compatibility", "gates"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe that passed its schema and its cross-field checks.

    `files` holds the toolkit's files that its mounts and patches name: path in the repository -> content.
    """

    document: Document
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def sha256(self) -> str:
        """Hash of the content, not of the file: a comment or a new line break is no change."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()


def names(folders: Sequence[Path]) -> dict[str, Path]:
    """Every recipe in the folders: name -> file. The first folder that has a name wins."""
    found: dict[str, Path] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.yml")):
            if file.stem not in BESIDE:
                found.setdefault(file.stem, file)
    return found


def load(name: str, folders: Sequence[Path] = (paths.RECIPES,)) -> Recipe:
    """Read a recipe by name. Raises RefusedError with every fault found."""
    known = names(folders)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise RefusedError(
            [
                UNKNOWN_RECIPE(
                    what=f"unknown recipe {name}",
                    expected=f"one of {', '.join(known) or 'none: no folder has recipes'}",
                    fix=f"name {close[0]!r}." if close else "correct `recipe:` in vllm_deployments.",
                )
            ]
        )
    return read(known[name])


def read(file: Path) -> Recipe:
    """Read and check one recipe file. Raises RefusedError with every fault found."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RefusedError([_fault(file, f"not YAML: {' '.join(str(error).split())}")]) from error
    schema_faults = list(schema.faults(document, paths.RECIPES / "schema.json"))
    if schema_faults:
        raise RefusedError(_fault(file, text) for text in schema_faults)
    files = {}
    faults = list(shared_gates.faults(document))
    document = shared_gates.expanded(document)
    faults += cross_faults(document, file.stem)
    for place, named in _toolkit_files(document):
        source = file.parent / named["path"]
        if "sha256" not in named:
            faults.append(f"{place}: {named['path']} has no sha256 — expected: one, because it lies beside the recipe")
            continue
        if not source.is_file():
            faults.append(f"{place}: {named['path']} is not a file beside the recipe — expected: {source}")
            continue
        content = source.read_text(encoding="utf-8")
        digest = hashlib.sha256(content.encode()).hexdigest()
        if digest != named["sha256"]:
            faults.append(f"{place}: {named['path']} has sha256 {digest} — expected: {named['sha256']}")
        files[named["path"]] = content
    if faults:
        raise RefusedError(_fault(file, text) for text in faults)
    return Recipe(document, files)


def _toolkit_files(document: Document) -> Iterator[tuple[str, Document]]:
    """What a recipe names beside itself: (mounts or patches, the entry with path and sha256)."""
    yield from (("mounts", mount) for mount in document.get("mounts", []) if mount["from"] == "toolkit")
    yield from (("patches", patch) for patch in document.get("patches", []))


def _fault(file: Path, text: str) -> Refusal:
    shown = file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file
    what, _, expected = text.partition(" — expected: ")
    return BAD_RECIPE(
        what=f"{shown}: {what}",
        expected=expected or "a recipe as recipes/schema.json describes it",
        fix=f"correct {shown}.",
    )


def cross_faults(document: Document, stem: str) -> Iterator[str]:
    """Rules that a schema cannot say. Yields `<path>: <value> — expected: <what>`."""
    if document["name"] != stem:
        yield f"name: {document['name']} — expected: {stem}, the file's stem"
    yield from override_faults(document)
    topology = document["topology"]
    if topology["tensor_parallel"] != topology["nodes"]:
        yield (
            f"topology.tensor_parallel: {topology['tensor_parallel']} — expected: {topology['nodes']}, "
            "because a Spark has one GPU"
        )
    if topology["nodes"] == 1 and topology["executor"] == "ray":
        yield "topology.executor: ray — expected: uni or mp, because one Spark needs no Ray"
    if topology["nodes"] > 1 and topology["executor"] == "uni":
        yield "topology.executor: uni — expected: mp or ray for two Sparks"
    yield from _ray_faults(document)
    if not {"utilization", "kv_cache_bytes"} & set(document["memory"]):
        yield "memory: neither utilization nor kv_cache_bytes — expected: one of them"
    seen: set[str] = set()
    for index, gate in enumerate(document["gates"].get("log", [])):
        place = f"gates.log[{index}]"
        if gate["id"] in seen:
            yield f"{place}.id: {gate['id']} twice — expected: every gate's id once"
        seen.add(gate["id"])
        yield from _log_gate_faults(place, gate)


def _ray_faults(document: Document) -> Iterator[str]:
    pins = document["image"].get("derive", {}).get("pip", [])
    baked = [pin.partition("==")[2] for pin in pins if RAY_PIN.match(pin)]
    named = document["engine"].get("ray", "missing")
    if baked and baked != [named]:
        yield f"engine.ray: {named} — expected: {baked[0]}, which image.derive.pip adds"


def _log_gate_faults(place: str, gate: Document) -> Iterator[str]:
    try:
        pattern = re.compile(gate["pattern"])
    except re.error as error:
        yield f"{place}.pattern: {gate['pattern']} — expected: a regular expression ({error})"
        return
    judged = {"equals", "at_least"} & set(gate)
    if judged and "value" not in pattern.groupindex:
        yield f"{place}.pattern: no group named value — expected: (?P<value>…), which {judged.pop()} judges"
    if judged and gate.get("expect") == "absent":
        yield f"{place}: expect absent with {judged.pop()} — expected: one or the other"


def override_faults(document: Document) -> Iterator[str]:
    """Rules for `args` and `env`, which a deployment may override."""
    for flag in sorted(PLANNED_FLAGS.keys() & document.get("args", {}).keys()):
        yield f"args.{flag}: set — expected: to come from {PLANNED_FLAGS[flag]}"
    for variable in sorted(document.get("env", {})):
        if SECRET_NAME.search(variable):
            yield f"env.{variable}: a secret — expected: in vllm_secrets of the inventory"
        elif "\n" in (document["env"][variable] or ""):
            yield f"env.{variable}: a line break — expected: one line, which is all an env file can hold"


def merged(recipe: Recipe, overrides: Document) -> Document:
    """The recipe's document with a deployment's overrides applied. A null takes a key away."""
    document = copy.deepcopy(dict(recipe.document))
    for block, changes in overrides.items():
        target = dict(document.get(block, {}))
        for key, value in changes.items():
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value
        document[block] = target
    return document
