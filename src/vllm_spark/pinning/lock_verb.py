"""The verb `lock`: the recipes of a run, the resolution of their references, and the report.

python -m vllm_spark.pinning.lock_verb    own_process: the arguments of the action plugin, and a LockOutcome
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core import own_process, paths
from vllm_spark.core.platforms import DEFAULT_PLATFORMS
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.inventory import deployment
from vllm_spark.pinning import packages, resolution, second_look
from vllm_spark.pinning.hub import Hub
from vllm_spark.pinning.registry import Registry
from vllm_spark.pinning.resolution import PinChange, PinSource, Resolution
from vllm_spark.recipe import loader, lockfile

NOTHING_TO_LOCK = register("nothing-to-lock", runbook="inventory-refused")


@dataclass(frozen=True, slots=True)
class RemoteSources:
    """Registries, the hub and the index of packages as one PinSource. `seconds`: host of a registry -> URL of a second
    one."""

    registry: Registry
    hub: Hub
    seconds: Mapping[str, str] = field(default_factory=dict)

    def image(self, key: str, platforms: tuple[str, ...]) -> Resolution:
        repository, _, tag = key.rpartition(":")
        return self.registry.resolve(repository, tag, platforms)

    def confirmed(self, key: str, answer: Resolution) -> Resolution:
        return second_look.confirmed(key, answer, self.seconds)

    def revision(self, repository: str) -> Resolution:
        return self.hub.revision(repository)

    def file(self, repository: str, revision: str, path: str) -> Resolution:
        return self.hub.file(repository, revision, path)

    def manifest(self, repository: str, revision: str) -> Resolution:
        return self.hub.manifest(repository, revision)

    def packages(self, pins: tuple[str, ...], python: str, platforms: tuple[str, ...]) -> Resolution:
        return packages.resolve(pins, python, platforms)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """The arguments of a run.

    - `deployments`: `vllm_deployments` as it is, not yet checked
    - `limit`: the hosts of the run
    - `recipes`: names of recipes; if empty, those of every active deployment within the limit
    - `accepted`: keys of the lock file whose entries may move, or `all`
    - `verify`: True to check digests that the recipes pin themselves
    - `open_only`: True to ask nothing for a recipe whose pins are all known, and on several hosts the manifest of its
      models too: a Spark may get them from another one, and the manifest tells whether they are those of the hub
    """

    deployments: object
    limit: tuple[str, ...]
    recipes: tuple[str, ...] = ()
    recipe_folders: tuple[Path, ...] = (paths.RECIPES,)
    accepted: tuple[str, ...] = ()
    verify: bool = False
    open_only: bool = False


@dataclass(frozen=True, slots=True)
class LockOutcome:
    """The content of the lock file before and after, and a line per entry."""

    before: str
    after: str
    lines: tuple[str, ...] = ()


def run(
    request: LockRequest, file: Path, source: PinSource, check: Callable[[Document], None], today: str
) -> LockOutcome:
    """Resolve the references that the recipes do not pin. The file is read and not written.

    `check` checks the digest that a recipe pins itself. Raises RefusedError with every fault.
    """
    old = lockfile.read(file)
    documents = _documents(request)
    if request.open_only:
        several = len(request.limit) > 1
        documents = [
            document
            for document in documents
            if lockfile.missing_pins(document, old) or (several and lockfile.missing_manifests(document, old))
        ]
    refusals: list[Refusal] = []
    for document in documents if request.verify else ():
        try:
            check(document)
        except RefusedError as error:
            refusals += error.refusals
    try:
        new, changes = resolution.resolve(documents, old, source, request.accepted, today)
    except RefusedError as error:
        raise RefusedError([*refusals, *error.refusals]) from error
    if refusals:
        raise RefusedError(refusals)
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    # With the same entries the file stays as it is, also if it has another format or comments.
    after = before if new == old else lockfile.text(new)
    lines = [*_lines(documents, changes, request.verify), *_inactive_lines(request, new)]
    return LockOutcome(before, after, tuple(lines))


def digest_check(registry: Registry) -> Callable[[Document], None]:
    """Return a check that the digest of a recipe is in its registry, for the recipe's platforms."""

    def check(document: Document) -> None:
        image = document["image"]
        if "digest" in image:
            registry.resolve(image["repository"], image["digest"], image.get("platforms", DEFAULT_PLATFORMS))

    return check


def _documents(request: LockRequest) -> list[Document]:
    """Return the recipes that the request names, else those of every active deployment within the limit. If no
    deployment there is active, those of the inactive ones."""
    placed = _placed(request)
    names = request.recipes or sorted({one.recipe for one in [one for one in placed if one.active] or placed})
    if not names and not request.open_only:
        raise RefusedError([_nothing_to_lock(request.limit)])
    refusals: list[Refusal] = []
    documents: list[Document] = []
    for name in names:
        try:
            documents.append(loader.load(name, request.recipe_folders).document)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    return documents


def _placed(request: LockRequest) -> list[deployment.Deployment]:
    """Return the deployments within the limit."""
    return [one for one in deployment.parse(request.deployments) if set(one.hosts) & set(request.limit)]


def _inactive_lines(request: LockRequest, lock: lockfile.Lock) -> Iterator[str]:
    """Yield a line for each inactive deployment whose recipe has a reference that the lock file does not have. Their
    registries are not asked: what does not run must not stop what runs."""
    active = {one.recipe for one in _placed(request) if one.active}
    for one in _placed(request) if active and not request.recipes else ():
        if one.recipe in active:
            continue
        try:
            document = loader.load(one.recipe, request.recipe_folders).document
        except RefusedError as error:
            yield f"inactive deployment {one.name}: {error}"
            continue
        if lockfile.missing_pins(document, lock):
            command = f"ansible-playbook lock.yml -e vllm_lock_recipes={one.recipe}"
            yield f"inactive deployment {one.name}: recipe {one.recipe} is not locked; before a switch: {command}"


def _lines(documents: Iterable[Document], changes: Iterable[PinChange], verify: bool) -> Iterator[str]:
    for document in documents:
        if "digest" in document["image"]:
            state = "and its registry has it" if verify else "not checked (-e lock_verify=true checks it)"
            yield f"recipe {document['name']} pins image {lockfile.locked_name(document)} itself, {state}"
    yield from (change.line() for change in changes)


def _nothing_to_lock(limit: Collection[str]) -> Refusal:
    return NOTHING_TO_LOCK(
        what=f"no deployment names {', '.join(limit)}",
        expected="a recipe to lock",
        fix="add a deployment to vllm_deployments, or name recipes: -e vllm_lock_recipes=NAME[,NAME].",
    )


def work(args: Mapping[str, Any], _log: own_process.Log) -> dict[str, Any]:
    """Run the verb with the arguments of the action plugin: those of LockRequest, lock_file, registries and
    second_registries (host -> URL) and token (of the hub). Returns a LockOutcome. Raises RefusedError."""
    registry = Registry(args["registries"])
    request = LockRequest(
        deployments=args["deployments"],
        limit=tuple(args["limit"]),
        recipes=tuple(args["recipes"]),
        recipe_folders=tuple(Path(folder) for folder in args["recipe_folders"]),
        accepted=tuple(args["accepted"]),
        verify=args["verify"],
        open_only=args["open_only"],
    )
    sources = RemoteSources(registry, Hub(token=args["token"]), args["second_registries"])
    return asdict(run(request, Path(args["lock_file"]), sources, digest_check(registry), time.strftime("%Y-%m-%d")))


if __name__ == "__main__":
    sys.exit(own_process.serve(work))
