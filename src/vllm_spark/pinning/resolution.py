"""Resolution of unpinned references into lock-file entries. Pure: a PinSource talks to registries and hubs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe.lockfile import Lock, LockedModel, UnpinnedRef, locked_value, unpinned_refs

UNKNOWN_ACCEPT = register("unknown-accept", runbook="lock-moved")

# The value of lock_accept that accepts every moved entry.
EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer of a registry or a hub for one reference. `origin` names the server."""

    value: str
    origin: str
    platform: str = ""


class PinSource(Protocol):
    """A source of pins. Each method raises RefusedError with a reason."""

    def image(self, key: str, platforms: tuple[str, ...]) -> Resolution: ...

    def revision(self, repository: str) -> Resolution: ...

    def file(self, repository: str, revision: str, path: str) -> Resolution: ...


@dataclass(frozen=True, slots=True)
class PinChange:
    """An entry before and after. `applied` is False for a moved entry that the operator has not accepted."""

    ref: UnpinnedRef
    old: str
    new: str
    applied: bool

    def line(self) -> str:
        """Return the line for the operator."""
        if self.old == self.new:
            return f"{self.ref}: {self.new}"
        if not self.old:
            return f"{self.ref}: new, {self.new}"
        if self.applied:
            return f"{self.ref}: {self.old} -> {self.new}"
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
    refs = sorted({ref for document in documents for ref in unpinned_refs(document)}, key=_order)
    refusals: list[Refusal] = list(_unknown_names(accepted, refs))
    changes: list[PinChange] = []
    for ref in refs:
        try:
            lock, change = _resolve_one(ref, lock, source, accepted, today)
        except RefusedError as error:
            refusals += error.refusals
            continue
        if change:
            changes.append(change)
    if refusals:
        raise RefusedError(refusals)
    return lock, changes


def _order(ref: UnpinnedRef) -> tuple[bool, str, str, tuple[str, ...]]:
    """Return the sort key: images first, then each model before its files."""
    return (ref.kind != "image", ref.key, ref.path, ref.platforms)


def _resolve_one(
    ref: UnpinnedRef, lock: Lock, source: PinSource, accepted: Collection[str], today: str
) -> tuple[Lock, PinChange | None]:
    """Resolve one reference. The change is None for a file whose model could not be resolved."""
    old = locked_value(lock, ref)
    if not ref.accepts(old):
        old = ""
    if ref.kind == "file":
        # A file of a commit never changes, so a known checksum is not requested again.
        if old:
            return lock, PinChange(ref, old, old, applied=False)
        repository, _, commit = ref.key.partition("@")
        revision = commit or str(lock.models.get(ref.key, {}).get("revision", ""))
        # The model is resolved before its files. Without a commit it was refused, and that reason is reported already.
        if not revision:
            return lock, None
        answer = source.file(repository, revision, ref.path)
    elif ref.kind == "image":
        answer = source.image(ref.key, ref.platforms)
    else:
        answer = source.revision(ref.key)
    applied = old != answer.value and (not old or bool({ref.key, EVERYTHING} & set(accepted)))
    change = PinChange(ref, old, answer.value, applied)
    return (_with_entry(lock, ref, answer, today) if applied else lock), change


def _with_entry(lock: Lock, ref: UnpinnedRef, answer: Resolution, today: str) -> Lock:
    """Return the lock with the entry of one reference replaced."""
    seen = f"{answer.origin}, {today}"
    if ref.kind == "image":
        return replace(
            lock,
            images={**lock.images, ref.key: {"digest": answer.value, "platform": answer.platform, "seen": seen}},
        )
    if ref.kind == "model":
        # The checksums of the old commit are dropped with it. The files are resolved after their model.
        return replace(lock, models={**lock.models, ref.key: {"revision": answer.value, "seen": seen}})
    old: LockedModel = lock.models.get(ref.key, {"seen": seen})
    new: LockedModel = {**old, "files": {**old.get("files", {}), ref.path: answer.value}}
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
