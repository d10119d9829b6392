"""Resolution of unpinned references into lock-file entries. Pure: a PinSource talks to registries and hubs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe.lockfile import Lock, LockedModel, UnpinnedRef, locked_value, manifest_refs, unpinned_refs

UNKNOWN_ACCEPT = register("unknown-accept", runbook="lock-moved")

# The value of lock_accept that accepts every moved entry.
EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer of a registry, a hub or an index for one reference. `origin` names the servers that gave it. `note`
    says what an operator must know of it."""

    value: str
    origin: str
    platform: str = ""
    note: str = ""


class PinSource(Protocol):
    """A source of pins. Each method raises RefusedError with a reason. `confirmed` returns an answer of `image` after a
    second registry was asked."""

    def image(self, key: str, platforms: tuple[str, ...]) -> Resolution: ...

    def confirmed(self, key: str, answer: Resolution) -> Resolution: ...

    def revision(self, repository: str) -> Resolution: ...

    def file(self, repository: str, revision: str, path: str) -> Resolution: ...

    def manifest(self, repository: str, revision: str) -> Resolution: ...

    def packages(self, pins: tuple[str, ...], python: str, platforms: tuple[str, ...]) -> Resolution: ...


@dataclass(frozen=True, slots=True)
class PinChange:
    """An entry before and after. `applied` is False for a moved entry that the operator has not accepted.

    `missing` is the reason why a manifest is not recorded. `note` is that of the resolution.
    """

    ref: UnpinnedRef
    old: str
    new: str
    applied: bool
    missing: str = ""
    note: str = ""

    def line(self) -> str:
        """Return the line for the operator."""
        if self.missing:
            return f"{self.ref}: not recorded, so a pull compares nothing with it: {self.missing}"
        if self.old == self.new:
            return f"{self.ref}: {self.ref.shown(self.new)}"
        if not self.old:
            return f"{self.ref}: new, {self.ref.shown(self.new)}{self.note}"
        if self.applied:
            return f"{self.ref}: {self.old} -> {self.new}{self.note}"
        return (
            f"{self.ref}: MOVED {self.old} -> {self.new}, and the old one stays. "
            f"To take the new one: -e lock_accept={self.ref.key}. See docs/runbooks/lock-moved.md"
        )


def resolve(
    documents: Iterable[Document], lock: Lock, source: PinSource, accepted: Collection[str], today: str
) -> tuple[Lock, list[PinChange]]:
    """Resolve every unpinned reference of the recipes. Returns the new lock and a change per entry, sorted by key.

    `accepted` holds keys of entries that may move. `today` is an ISO date. Raises RefusedError with every fault; the
    lock file must not be written then.
    """
    documents = list(documents)
    pins = {ref for document in documents for ref in unpinned_refs(document)}
    manifests = {ref for document in documents for ref in manifest_refs(document)}
    refusals: list[Refusal] = list(_unknown_names(accepted, pins))
    changes: list[PinChange] = []
    for ref in sorted(pins | manifests, key=_order):
        try:
            lock, change = _resolve_one(ref, lock, source, accepted, today)
        except RefusedError as error:
            if ref.kind != "manifest":
                refusals += error.refusals
                continue
            # A recipe can be deployed without it, so a hub that is down does not stop the verb.
            change = PinChange(ref, "", "", applied=False, missing="; ".join(row.what for row in error.refusals))
        if change:
            changes.append(change)
    if refusals:
        raise RefusedError(refusals)
    return lock, changes


def _order(ref: UnpinnedRef) -> tuple[bool, str, bool, str, tuple[str, ...]]:
    """Return the sort key: images and packages first, then each model before its files and its manifest."""
    return (ref.kind not in {"image", "packages"}, ref.key, ref.kind == "manifest", ref.path, ref.platforms)


def _resolve_one(
    ref: UnpinnedRef, lock: Lock, source: PinSource, accepted: Collection[str], today: str
) -> tuple[Lock, PinChange | None]:
    """Resolve one reference. The change is None for a file whose model could not be resolved."""
    old = locked_value(lock, ref)
    if not ref.accepts(old):
        old = ""
    if ref.kind in {"file", "manifest"}:
        # A commit never changes, so a known checksum is not requested again.
        if old:
            return lock, PinChange(ref, old, old, applied=False)
        repository, _, commit = ref.key.partition("@")
        revision = commit or str(lock.models.get(ref.key, {}).get("revision", ""))
        # The model is resolved before its files. Without a commit it was refused, and that reason is reported already.
        if not revision:
            return lock, None
        of_file = ref.kind == "file"
        answer = source.file(repository, revision, ref.path) if of_file else source.manifest(repository, revision)
    elif ref.kind == "packages":
        # What the packages need has a new release every week, so that each run would report a move.
        if old:
            return lock, PinChange(ref, old, old, applied=False)
        answer = source.packages(ref.pins, ref.python, ref.platforms)
    elif ref.kind == "image":
        answer = source.image(ref.key, ref.platforms)
    else:
        answer = source.revision(ref.key)
    applied = old != answer.value and (not old or bool({ref.key, EVERYTHING} & set(accepted)))
    if applied and ref.kind == "image":
        answer = source.confirmed(ref.key, answer)
    change = PinChange(ref, old, answer.value, applied, note=answer.note)
    return (_with_entry(lock, ref, answer, today) if applied else lock), change


def _with_entry(lock: Lock, ref: UnpinnedRef, answer: Resolution, today: str) -> Lock:
    """Return the lock with the entry of one reference replaced."""
    seen = f"{answer.origin}, {today}"
    if ref.kind == "image":
        return replace(
            lock,
            images={**lock.images, ref.key: {"digest": answer.value, "platform": answer.platform, "seen": seen}},
        )
    if ref.kind == "packages":
        return replace(lock, packages={**lock.packages, ref.key: {"wheels": answer.value.splitlines(), "seen": seen}})
    if ref.kind == "model":
        # The checksums of the old commit are dropped with it. The files are resolved after their model.
        return replace(lock, models={**lock.models, ref.key: {"revision": answer.value, "seen": seen}})
    old: LockedModel = lock.models.get(ref.key, {"seen": seen})
    new: LockedModel = {**old, "manifest": answer.value}
    if ref.kind == "file":
        new = {**old, "files": {**old.get("files", {}), ref.path: answer.value}}
    return replace(lock, models={**lock.models, ref.key: new})


def _unknown_names(accepted: Collection[str], refs: Collection[UnpinnedRef]) -> Iterator[Refusal]:
    known = {ref.key for ref in refs}
    keys = f"{EVERYTHING}, or one of {', '.join(sorted(known))}"
    for name in sorted(set(accepted) - known - {EVERYTHING}):
        yield UNKNOWN_ACCEPT(
            what=f"lock_accept names {name}",
            expected=keys if known else "no name, because the recipes pin everything themselves",
            fix="correct lock_accept: names are separated by commas.",
        )
