"""The lock file beside the inventory: what every tag and every branch meant when `lock` last looked.

    images: {"REPOSITORY:TAG": {digest: "sha256:…", platform: linux/arm64, seen: …}}
    models: {"OWNER/NAME": {revision: 40 hex digits, seen: …, files: {PATH: sha256}}}

A file of a model whose recipe pins the commit itself stands under "OWNER/NAME@COMMIT". Pure but for `read` and `write`;
whoever is asked for a digest or a commit is handed in.
"""

from __future__ import annotations

import copy
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document

UNKNOWN_ACCEPT = register("unknown-accept", runbook="lock-moved")
BAD_LOCK = register("bad-lock", runbook="lock-file")

Entries = Mapping[str, Mapping[str, Any]]

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REVISION = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")

# What a Spark is. The sandbox's recipes name another beside it.
DEFAULT_PLATFORMS = ("linux/arm64",)

EVERYTHING = "all"

HEADER = """\
---
# Written by `ansible-playbook lock.yml`: what every tag and branch of the recipes meant when it was seen.
"""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's two tables. Keys that this version does not know stay in their entries."""

    images: Entries = field(default_factory=dict)
    models: Entries = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnpinnedRef:
    """One thing that a recipe leaves to the lock file: an image's digest, a model's commit, or the checksum of a file
    of that model (`path`)."""

    kind: str  # image, model or file
    key: str
    path: str = ""
    platforms: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.path + ' of ' if self.path else ''}{self.key}"


@dataclass(frozen=True, slots=True)
class MissingPin:
    """An open thing that the lock file does not answer. `seen` is what stands there instead, often nothing."""

    open: UnpinnedRef
    seen: str = ""

    def __str__(self) -> str:
        return f"{self.open} {f'has the {_noun(self.open)} {self.seen}' if self.seen else f'has no {_noun(self.open)}'}"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a registry or a hub says of an open thing. `seen` names who said it."""

    value: str
    seen: str
    platform: str = ""


@dataclass(frozen=True, slots=True)
class PinChange:
    """An entry before and after. A moved one is not `taken` unless the operator accepts it."""

    open: UnpinnedRef
    old: str
    new: str
    taken: bool

    def line(self) -> str:
        """As an operator reads it; what stays as it was says so."""
        if self.old == self.new:
            return f"{self.open}: {self.new}"
        if not self.old:
            return f"{self.open}: new, {self.new}"
        if self.taken:
            return f"{self.open}: {self.old} -> {self.new}"
        return (
            f"{self.open}: MOVED {self.old} -> {self.new}, and the old one stays. "
            f"To take the new one: -e lock_accept={self.open.key}. See docs/runbooks/lock-moved.md"
        )


class PinSource(Protocol):
    """Who is asked. Each method raises RefusedError with a reason."""

    def image(self, key: str, platforms: tuple[str, ...]) -> Resolution: ...

    def revision(self, repository: str) -> Resolution: ...

    def file(self, repository: str, revision: str, path: str) -> Resolution: ...


def locked_name(document: Document) -> str:
    """The key of an image in the lock file: repository:tag."""
    return f"{document['image']['repository']}:{document['image']['tag']}"


def unpinned_refs(document: Document) -> Iterator[UnpinnedRef]:
    """What a recipe leaves to the lock file, an image first, a model before its files."""
    if "digest" not in document["image"]:
        platforms = tuple(document["image"].get("platforms", DEFAULT_PLATFORMS))
        yield UnpinnedRef("image", locked_name(document), platforms=platforms)
    for source in (document["model"], document.get("drafter")):
        if source and "revision" not in source:
            yield UnpinnedRef("model", source["repository"])
    for mount in document.get("mounts", []):
        if mount["from"] == "model" and "sha256" not in mount:
            yield UnpinnedRef("file", _model_key(document["model"]), mount["path"])


def missing_pins(document: Document, lock: Lock) -> list[MissingPin]:
    """What neither the recipe nor the lock file pins; empty for a recipe that can be deployed."""
    found = ((open_, _value(lock, open_)) for open_ in unpinned_refs(document))
    return [MissingPin(open_, seen) for open_, seen in found if not _pattern(open_).fullmatch(seen)]


def pinned(document: Document, lock: Lock) -> dict[str, Any]:
    """The document with everything filled in that the lock file answers."""
    filled = copy.deepcopy(dict(document))
    for open_ in unpinned_refs(document):
        value = _value(lock, open_)
        if not _pattern(open_).fullmatch(value):
            continue
        if open_.kind == "image":
            filled["image"]["digest"] = value
        elif open_.kind == "model":
            for source in (filled["model"], filled.get("drafter", {})):
                if source.get("repository") == open_.key:
                    source.setdefault("revision", value)
        else:
            for mount in filled["mounts"]:
                if mount["from"] == "model" and mount["path"] == open_.path:
                    mount.setdefault("sha256", value)
    return filled


def resolve(
    documents: Iterable[Document], lock: Lock, source: PinSource, accepted: Collection[str], today: str
) -> tuple[Lock, list[PinChange]]:
    """Ask for everything that the recipes leave open: (the new lock, a change per entry, sorted by key). Raises
    RefusedError with every fault, and then nothing is to be written. `today` is an ISO date."""
    wanted = sorted({open_ for document in documents for open_ in unpinned_refs(document)}, key=_order)
    refusals: list[Refusal] = list(_unknown_names(accepted, wanted))
    changes: list[PinChange] = []
    for open_ in wanted:
        try:
            lock, change = _resolve_one(open_, lock, source, accepted, today)
        except RefusedError as error:
            refusals += error.refusals
            continue
        if change:
            changes.append(change)
    if refusals:
        raise RefusedError(refusals)
    return lock, changes


def _order(open_: UnpinnedRef) -> tuple[bool, str, str, tuple[str, ...]]:
    """Images, then each model before its files."""
    return (open_.kind != "image", open_.key, open_.path, open_.platforms)


def _resolve_one(
    open_: UnpinnedRef, lock: Lock, source: PinSource, accepted: Collection[str], today: str
) -> tuple[Lock, PinChange | None]:
    old = _value(lock, open_)
    if not _pattern(open_).fullmatch(old):
        old = ""
    if open_.kind == "file":
        # A commit's file does not change, so what is known is not asked again.
        if old:
            return lock, PinChange(open_, old, old, taken=False)
        repository, _, pinned_to = open_.key.partition("@")
        revision = pinned_to or str(lock.models.get(open_.key, {}).get("revision", ""))
        # Without a commit the reason is known already: the model before it was refused.
        if not revision:
            return lock, None
        answer = source.file(repository, revision, open_.path)
    elif open_.kind == "image":
        answer = source.image(open_.key, open_.platforms)
    else:
        answer = source.revision(open_.key)
    taken = old != answer.value and (not old or bool({open_.key, EVERYTHING} & set(accepted)))
    change = PinChange(open_, old, answer.value, taken)
    return (_with(lock, open_, answer, today) if taken else lock), change


def _with(lock: Lock, open_: UnpinnedRef, answer: Resolution, today: str) -> Lock:
    """The lock with one entry written."""
    seen = f"{answer.seen}, {today}"
    if open_.kind == "image":
        image = {"digest": answer.value, "platform": answer.platform, "seen": seen}
        return replace(lock, images={**lock.images, open_.key: image})
    if open_.kind == "model":
        # Its files go with the old commit; they are asked for after it.
        return replace(lock, models={**lock.models, open_.key: {"revision": answer.value, "seen": seen}})
    entry: dict[str, Any] = dict(lock.models.get(open_.key, {"seen": seen}))
    entry["files"] = {**entry.get("files", {}), open_.path: answer.value}
    return replace(lock, models={**lock.models, open_.key: entry})


def _unknown_names(accepted: Collection[str], wanted: Collection[UnpinnedRef]) -> Iterator[Refusal]:
    known = {open_.key for open_ in wanted}
    for name in sorted(set(accepted) - known - {EVERYTHING}):
        yield UNKNOWN_ACCEPT(
            what=f"lock_accept names {name}",
            expected=f"{EVERYTHING}, or of {', '.join(sorted(known)) or 'nothing: the recipes pin everything'}",
            fix="correct lock_accept: names are separated by commas.",
        )


def read(file: Path | None) -> Lock:
    """A lock file. An absent one locks nothing; a broken one is refused, because writing over it would lose what it
    holds."""
    if file is None or not file.is_file():
        return Lock()
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        tables = {table: document.get(table) or {} for table in ("images", "models")}
        entries = {table: {str(key): dict(entry) for key, entry in rows.items()} for table, rows in tables.items()}
        for entry in entries["models"].values():
            entry["files"] = dict(entry["files"]) if entry.get("files") else {}
            if not entry["files"]:
                del entry["files"]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, UnicodeDecodeError) as error:
        raise RefusedError(
            [
                BAD_LOCK(
                    what=f"{file}: {' '.join(str(error).split())}",
                    expected='images: {"REPOSITORY:TAG": {digest: "sha256:…"}}',
                    fix=f"correct {file}.",
                )
            ]
        ) from error
    return Lock(**entries)


def text(lock: Lock) -> str:
    """The file's content: sorted, so that the same entries are the same bytes."""
    tables = {
        name: {key: dict(entry) for key, entry in table.items()}
        for name, table in (("images", lock.images), ("models", lock.models))
        if table
    }
    return HEADER + yaml.safe_dump(tables, sort_keys=True, allow_unicode=True, width=1000)


def write(file: Path, content: str) -> None:
    """Replace the file so that a reader sees the old or the new one, whatever happens meanwhile."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def refusals(document: Document, lock: Lock) -> Iterator[Refusal]:
    """Why a recipe cannot be deployed yet: a reason for each thing that nothing pins."""
    for gap in missing_pins(document, lock):
        yield _NOT_LOCKED[gap.open.kind](
            what=f"recipe {document['name']}: {gap}",
            expected=_EXPECTED[gap.open.kind],
            fix="ansible-playbook lock.yml.",
        )


_NOT_LOCKED = {
    "image": register("not-locked", runbook="image-not-locked"),
    "model": register("model-not-locked", runbook="lock-model"),
    "file": register("file-not-locked", runbook="lock-model"),
}
_EXPECTED = {
    "image": "sha256: and 64 hex digits as image.digest of the recipe or in the inventory's lock file",
    "model": "a commit of 40 hex digits as revision of the recipe or in the inventory's lock file",
    "file": "its sha256 in the recipe's mount or in the inventory's lock file",
}


def _model_key(model: Document) -> str:
    return f"{model['repository']}@{model['revision']}" if "revision" in model else str(model["repository"])


def _value(lock: Lock, open_: UnpinnedRef) -> str:
    """What the lock file says of an open thing, whatever its form."""
    if open_.kind == "image":
        return str(lock.images.get(open_.key, {}).get("digest", ""))
    entry = lock.models.get(open_.key, {})
    if open_.kind == "model":
        return str(entry.get("revision", ""))
    return str(entry.get("files", {}).get(open_.path, ""))


def _pattern(open_: UnpinnedRef) -> re.Pattern[str]:
    return {"image": DIGEST, "model": REVISION, "file": SHA256}[open_.kind]


def _noun(open_: UnpinnedRef) -> str:
    return {"image": "digest", "model": "revision", "file": "sha256"}[open_.kind]
