"""The lock file beside the inventory: digests and commits of the tags and branches that recipes name.

    images: {"REPOSITORY:TAG": {digest: "sha256:…", platform: linux/arm64, seen: …}}
    models: {"OWNER/NAME": {revision: 40 hex digits, seen: …, files: {PATH: sha256}, manifest: sha256}}
    packages: {"PIN … for Python 3.12 on linux/arm64": {wheels: [NAME==VERSION --hash=sha256:…], seen: …}}

If a recipe pins the commit of its model itself, the model's files are under "OWNER/NAME@COMMIT". `manifest` is the
sha256 of the list of its files (node/pull/model_files.py), with which every pull compares a copy. `seen` is the server
that answered and the date. All functions but `read` are pure.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

import yaml

from vllm_spark.core import documents
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.platforms import DEFAULT_PLATFORMS
from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import wheels

SCHEMA = Path(__file__).with_name("lockfile.schema.json")
# A commit of a hub, in full.
COMMIT = re.compile(r"[0-9a-f]{40}")

BAD_LOCK = register("bad-lock", runbook="lock-file")
NOT_LOCKED = {
    "image": register("not-locked", runbook="image-not-locked"),
    "model": register("model-not-locked", runbook="lock-model"),
    "file": register("file-not-locked", runbook="lock-model"),
    "packages": register("packages-not-locked", runbook="wheels"),
}

HEADER = """\
---
# Written by the verb `lock`: what every tag and branch of the recipes meant when it was seen.
"""


class LockedImage(TypedDict, total=False):
    """An entry of `images`."""

    digest: str
    platform: str
    seen: str


class LockedModel(TypedDict, total=False):
    """An entry of `models`. `files`: path in the repository -> sha256. `manifest`: sha256 of the list of all files."""

    revision: str
    seen: str
    files: Mapping[str, str]
    manifest: str


class LockedPackages(TypedDict, total=False):
    """An entry of `packages`. `wheels`: lines of recipe/wheels.py."""

    wheels: Sequence[str]
    seen: str


@dataclass(frozen=True, slots=True)
class Lock:
    """The tables of a lock file. Unknown keys stay in their entries."""

    images: Mapping[str, LockedImage] = field(default_factory=dict)
    models: Mapping[str, LockedModel] = field(default_factory=dict)
    packages: Mapping[str, LockedPackages] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PinKind:
    """A kind of pin: what it is called, its form, and what a refusal expects."""

    noun: str
    pattern: re.Pattern[str]
    expected: str


PIN_KINDS = {
    "image": PinKind(
        "digest",
        re.compile(r"sha256:[0-9a-f]{64}"),
        "sha256: and 64 hex digits as image.digest of the recipe or in the inventory's lock file",
    ),
    "model": PinKind(
        "revision",
        COMMIT,
        "a commit of 40 hex digits as revision of the recipe or in the inventory's lock file",
    ),
    "file": PinKind(
        "sha256",
        re.compile(r"[0-9a-f]{64}"),
        "its sha256 in the recipe's mount or in the inventory's lock file",
    ),
    "manifest": PinKind("sha256", re.compile(r"[0-9a-f]{64}"), "its sha256 in the inventory's lock file"),
    "packages": PinKind(
        "hashes",
        re.compile(rf"{wheels.LINE.pattern}(\n{wheels.LINE.pattern})*"),
        "the sha256 of each wheel as image.derive.wheels of the recipe or in the inventory's lock file",
    ),
}


@dataclass(frozen=True, slots=True)
class UnpinnedRef:
    """A reference that a recipe does not pin: an image by tag, a model by name, a file (`path`) of that model, or the
    packages of a derived image (`pins`) for its Python."""

    kind: str  # a key of PIN_KINDS
    key: str
    path: str = ""
    platforms: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    python: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.path + ' of ' if self.path else ''}{self.key}"

    def accepts(self, value: str) -> bool:
        """Return True if a value has the form of this reference's pin."""
        formed = PIN_KINDS[self.kind].pattern.fullmatch(value) is not None
        return formed and (not self.pins or wheels.cover(value.splitlines(), self.pins))

    def shown(self, value: str) -> str:
        """Return a pin as an operator reads it."""
        count = len(value.splitlines())
        return f"{count} wheel{'s' * (count > 1)}" if self.kind == "packages" else value


@dataclass(frozen=True, slots=True)
class MissingPin:
    """A reference that neither the recipe nor the lock file pins.

    `value` is the malformed pin in the lock file, or empty.
    """

    ref: UnpinnedRef
    value: str = ""

    def __str__(self) -> str:
        noun = PIN_KINDS[self.ref.kind].noun
        return f"{self.ref} {f'has the {noun} {self.ref.shown(self.value)}' if self.value else f'has no {noun}'}"


def locked_name(document: Document) -> str:
    """Return the key of a recipe's image in the lock file: repository:tag."""
    return f"{document['image']['repository']}:{document['image']['tag']}"


def unpinned_refs(document: Document) -> Iterator[UnpinnedRef]:
    """Yield the references that a recipe does not pin: the image and its packages first, and a model before its
    files."""
    platforms = tuple(document["image"].get("platforms", DEFAULT_PLATFORMS))
    if "digest" not in document["image"]:
        yield UnpinnedRef("image", locked_name(document), platforms=platforms)
    derive = document["image"].get("derive", {})
    # Wheels of other pins are none: who changes a pin of the recipe need not know that it has wheels.
    if (pins := tuple(derive.get("pip", ()))) and not wheels.cover(derive.get("wheels", ()), pins):
        python = wheels.python_of(document)
        yield UnpinnedRef("packages", wheels.key(document), platforms=platforms, pins=pins, python=python)
    for source in (document["model"], document.get("drafter")):
        if source and "revision" not in source:
            yield UnpinnedRef("model", source["repository"])
    for mount in document.get("mounts", []):
        if mount["from"] == "model" and "sha256" not in mount:
            yield UnpinnedRef("file", _model_key(document["model"]), mount["path"])


def manifest_refs(document: Document) -> Iterator[UnpinnedRef]:
    """Yield the manifests of a recipe's model and drafter. A recipe cannot pin them, and runs without them."""
    for source in (document["model"], document.get("drafter")):
        if source:
            yield UnpinnedRef("manifest", _model_key(source))


def missing_manifests(document: Document, lock: Lock) -> bool:
    """Return True if the lock file lacks a manifest of a recipe."""
    return not all(ref.accepts(locked_value(lock, ref)) for ref in manifest_refs(document))


def manifests(document: Document, pinned_document: Document, lock: Lock) -> dict[str, str]:
    """Return OWNER/NAME@COMMIT -> sha256 of the manifests that the lock file has for a recipe. `pinned_document` is the
    recipe with its commits."""
    known = {}
    for name in ("model", "drafter"):
        if source := document.get(name):
            ref = UnpinnedRef("manifest", _model_key(source))
            revision = pinned_document[name].get("revision", "")
            if ref.accepts(value := locked_value(lock, ref)):
                known[f"{source['repository']}@{revision}"] = value
    return known


def _model_key(model: Document) -> str:
    return f"{model['repository']}@{model['revision']}" if "revision" in model else str(model["repository"])


def locked_value(lock: Lock, ref: UnpinnedRef) -> str:
    """Return the lock file's value for a reference as it is, or an empty text."""
    if ref.kind == "image":
        return str(lock.images.get(ref.key, {}).get("digest", ""))
    if ref.kind == "packages":
        return "\n".join(lock.packages.get(ref.key, {}).get("wheels", ()))
    model = lock.models.get(ref.key, {})
    if ref.kind == "model":
        return str(model.get("revision", ""))
    if ref.kind == "manifest":
        return str(model.get("manifest", ""))
    return str(model.get("files", {}).get(ref.path, ""))


def missing_pins(document: Document, lock: Lock) -> list[MissingPin]:
    """Return what neither the recipe nor the lock file pins. It is empty for a recipe that can be deployed."""
    values = [(ref, locked_value(lock, ref)) for ref in unpinned_refs(document)]
    return [MissingPin(ref, value) for ref, value in values if not ref.accepts(value)]


def pinned(document: Document, lock: Lock) -> dict[str, Any]:
    """Return a copy of the recipe's document with every pin that the lock file has."""
    result = copy.deepcopy(dict(document))
    for ref in unpinned_refs(document):
        value = locked_value(lock, ref)
        if not ref.accepts(value):
            continue
        if ref.kind == "image":
            result["image"]["digest"] = value
        elif ref.kind == "packages":
            result["image"]["derive"]["wheels"] = value.splitlines()
        elif ref.kind == "model":
            for source in (result["model"], result.get("drafter", {})):
                if source.get("repository") == ref.key:
                    source.setdefault("revision", value)
        else:
            for mount in result["mounts"]:
                if mount["from"] == "model" and mount["path"] == ref.path:
                    mount.setdefault("sha256", value)
    return result


def refusals(document: Document, lock: Lock) -> Iterator[Refusal]:
    """Yield a refusal for each reference of a recipe that is not pinned."""
    for missing in missing_pins(document, lock):
        yield NOT_LOCKED[missing.ref.kind](
            what=f"recipe {document['name']}: {missing}",
            expected=PIN_KINDS[missing.ref.kind].expected,
            fix=Fix("ansible-playbook lock.yml"),
        )


def read(file: Path | None) -> Lock:
    """Read a lock file. No file or an absent one is an empty lock.

    Raises RefusedError if the file is malformed, because a rewrite would lose its entries.
    """
    if file is None or not (file.exists() or file.is_symlink()):
        return Lock()
    from vllm_spark.core import schema  # noqa: PLC0415  importing jsonschema takes a tenth of a second

    try:
        document = documents.read_yaml(file) or {}
        faults = list(schema.faults(document, SCHEMA))
    except DocumentError as error:
        faults = [error.fault]
    if faults:
        raise RefusedError(
            BAD_LOCK(what=f"{file}: {fault.what}", expected=fault.expected, fix=f"correct {file}.") for fault in faults
        )
    images = {key: cast("LockedImage", row) for key, row in (document.get("images") or {}).items()}
    models = {key: _locked_model(row) for key, row in (document.get("models") or {}).items()}
    packages = {key: cast("LockedPackages", row) for key, row in (document.get("packages") or {}).items()}
    return Lock(images, models, packages)


def _locked_model(row: Document) -> LockedModel:
    """Return an entry of `models` without an empty `files`."""
    return cast("LockedModel", {key: value for key, value in row.items() if key != "files" or value})


def text(lock: Lock) -> str:
    """Return the content of a lock file. It is sorted, so that equal entries give equal bytes."""
    tables = {
        name: {key: dict(entry) for key, entry in table.items()}
        for name, table in (("images", lock.images), ("models", lock.models), ("packages", lock.packages))
        if table
    }
    return HEADER + yaml.safe_dump(tables, sort_keys=True, allow_unicode=True, width=1000)
