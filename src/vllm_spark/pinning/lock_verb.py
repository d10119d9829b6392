"""The verb `lock`: which recipes count, who is asked, and what an operator reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.inventory import deployment
from vllm_spark.pinning.hub import Hub
from vllm_spark.pinning.registry import Registry
from vllm_spark.recipe import loader, lockfile
from vllm_spark.recipe.lockfile import PinChange, Resolution

NOTHING_TO_LOCK = register("nothing-to-lock", runbook="inventory-refused")


@dataclass(frozen=True, slots=True)
class RemoteSources:
    """Registries and hub as one source of answers."""

    registry: Registry
    hub: Hub

    def image(self, key: str, platforms: tuple[str, ...]) -> Resolution:
        repository, _, tag = key.rpartition(":")
        return self.registry.resolve(repository, tag, platforms)

    def revision(self, repository: str) -> Resolution:
        return self.hub.revision(repository)

    def file(self, repository: str, revision: str, path: str) -> Resolution:
        return self.hub.file(repository, revision, path)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What a run of `lock` was given."""

    deployments: object
    limit: tuple[str, ...]
    recipes: tuple[str, ...] = ()
    recipe_folders: tuple[Path, ...] = (paths.RECIPES,)
    accepted: tuple[str, ...] = ()
    verify: bool = False


@dataclass(frozen=True, slots=True)
class LockOutcome:
    """The file before and after, and a line per entry."""

    before: str
    after: str
    lines: Sequence[str] = field(default_factory=tuple)


def run(
    wanted: LockRequest, file: Path, source: lockfile.PinSource, check: Callable[[Document], None], today: str
) -> LockOutcome:
    """Resolve what the recipes leave open. `check` looks at a digest that a recipe pins itself. Nothing is written.
    Raises RefusedError with every fault found."""
    documents = _documents(wanted)
    old = lockfile.read(file)
    refusals: list[Refusal] = []
    for document in documents if wanted.verify else ():
        try:
            check(document)
        except RefusedError as error:
            refusals += error.refusals
    try:
        new, changes = lockfile.resolve(documents, old, source, wanted.accepted, today)
    except RefusedError as error:
        raise RefusedError([*refusals, *error.refusals]) from error
    if refusals:
        raise RefusedError(refusals)
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    # The same entries are no change, whoever wrote the file and in whatever form.
    after = before if new == old else lockfile.text(new)
    return LockOutcome(before, after, tuple(_lines(documents, changes, wanted.verify)))


def verified(registry: Registry) -> Callable[[Document], None]:
    """A check that a recipe's own digest is in its registry and for its platform."""

    def check(document: Document) -> None:
        image = document["image"]
        if "digest" in image:
            platforms = image.get("platforms", lockfile.DEFAULT_PLATFORMS)
            registry.resolve(image["repository"], image["digest"], platforms)

    return check


def _documents(wanted: LockRequest) -> list[Document]:
    """The recipes that count: those named, else those of every deployment that the limit touches, active or not."""
    named = wanted.recipes or sorted(
        {placed.recipe for placed in deployment.parse(wanted.deployments) if set(placed.hosts) & set(wanted.limit)}
    )
    if not named:
        raise RefusedError([_nothing(wanted.limit)])
    refusals: list[Refusal] = []
    found: list[Document] = []
    for name in named:
        try:
            found.append(loader.load(name, wanted.recipe_folders).document)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    return found


def _lines(documents: Iterable[Document], changes: Collection[PinChange], verify: bool) -> Iterator[str]:
    for document in documents:
        if "digest" in document["image"]:
            held = "as its registry has it" if verify else "not asked for (-e lock_verify=true asks)"
            yield f"recipe {document['name']} pins image {lockfile.locked_name(document)} itself, {held}"
    yield from (change.line() for change in changes)


def _nothing(limit: Collection[str]) -> Refusal:
    return NOTHING_TO_LOCK(
        what=f"no deployment names {', '.join(limit)}",
        expected="a recipe to lock",
        fix="add a deployment to vllm_deployments, or name recipes: -e vllm_lock_recipes=NAME[,NAME].",
    )
