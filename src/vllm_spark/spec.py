"""Stage 1: from the inventory alone to the spec of what shall run on one Spark. No box is asked.

The spec is plain JSON, because Ansible carries it from this stage to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vllm_spark import deployment as deployments
from vllm_spark import paths, recipe
from vllm_spark.deployment import Deployment
from vllm_spark.refusal import Refusal, RefusedError

# Constant, because the unit, which is the same text everywhere, names it.
CONFIG_DIR = "/etc/vllm-spark"
UNIT_FILE = "/etc/systemd/system/vllm@.service"

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

DEFAULT_PLATFORMS = ("linux/arm64",)


@dataclass(frozen=True, slots=True)
class Site:
    """Paths of a box that an inventory may set: where its large data lie."""

    hub_dir: str = "/var/lib/vllm-spark/hub"
    cache_dir: str = "/var/lib/vllm-spark/cache"


@dataclass(frozen=True, slots=True)
class Spec:
    """One rank of one deployment, resolved: recipe with overrides, image by digest."""

    host: str
    rank: int
    deployment: Deployment
    recipe: Mapping[str, Any]
    recipe_sha256: str
    digest: str
    files: Mapping[str, str] = field(default_factory=dict)
    inactive: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    site: Site = Site()

    @property
    def image(self) -> str:
        """What `docker run` is given: never a tag."""
        return f"{self.recipe['image']['repository']}@{self.digest}"

    @property
    def platforms(self) -> Sequence[str]:
        return self.recipe["image"].get("platforms", DEFAULT_PLATFORMS)  # type: ignore[no-any-return]

    @property
    def config_dir(self) -> str:
        return f"{CONFIG_DIR}/{self.deployment.name}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Spec:
        given = dict(document)
        placed = given.pop("deployment")
        return cls(
            deployment=Deployment(**{**placed, "hosts": tuple(placed["hosts"])}),
            inactive=tuple(given.pop("inactive")),
            secrets=tuple(given.pop("secrets")),
            site=Site(**given.pop("site")),
            **given,
        )


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a run was given: the desired state and its limits. `secrets` maps names to whether they have a value."""

    deployments: object
    sparks: tuple[str, ...]
    limit: tuple[str, ...]
    recipe_folders: tuple[Path, ...] = (paths.RECIPES,)
    lock_file: Path | None = None
    secrets: Mapping[str, bool] = field(default_factory=dict)
    site: Site = Site()


def resolve(inventory: Inventory, host: str) -> Spec | None:
    """The spec of one Spark, or None where the inventory leaves it idle. Raises RefusedError with every fault."""
    everything = deployments.parse(inventory.deployments)
    refusals = list(_placement(everything, inventory))
    if refusals:
        raise RefusedError(refusals)
    active = deployments.active_of_host(everything, host)
    if active is None:
        return None
    loaded = recipe.load(active.recipe, inventory.recipe_folders)
    document = recipe.merged(loaded, active.overrides)
    lock = read_lock(inventory.lock_file)
    digest = document["image"].get("digest") or str(lock.get(locked_name(document), {}).get("digest", ""))
    refusals = [
        *_pairing(active, document, inventory.limit),
        *_locking(document, digest),
        *_secrets(document, inventory.secrets),
        *_not_built_yet(document),
    ]
    if refusals:
        raise RefusedError(refusals)
    return Spec(
        host=host,
        rank=active.hosts.index(host),
        deployment=active,
        recipe=document,
        recipe_sha256=loaded.sha256,
        digest=digest,
        files=loaded.files,
        inactive=tuple(d.name for d in deployments.of_host(everything, host) if not d.active),
        secrets=tuple(sorted(inventory.secrets)),
        site=inventory.site,
    )


def locked_name(document: Mapping[str, Any]) -> str:
    """The key of an image in the lock file: repository:tag."""
    return f"{document['image']['repository']}:{document['image']['tag']}"


def read_lock(file: Path | None) -> Mapping[str, Any]:
    """The images of a lock file: `repository:tag` -> {digest, …}. An absent file locks nothing."""
    if file is None or not file.is_file():
        return {}
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        return {name: dict(entry) for name, entry in document.get("images", {}).items()}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise RefusedError(
            [
                Refusal(
                    id="bad-lock",
                    what=f"{file}: {' '.join(str(error).split())}",
                    expected='images: {"REPOSITORY:TAG": {digest: "sha256:…"}}',
                    fix=f"correct {file}.",
                    runbook="image-not-locked",
                )
            ]
        ) from error


def _placement(everything: Sequence[Deployment], inventory: Inventory) -> Iterator[Refusal]:
    for placed in everything:
        for name in placed.hosts:
            if name not in inventory.sparks:
                yield Refusal(
                    id="unknown-host",
                    what=f"deployment {placed.name} names {name}",
                    expected=f"hosts of the group sparks: {', '.join(inventory.sparks)}",
                    fix=f"add {name} to the inventory, or correct hosts of {placed.name}.",
                    runbook="inventory-refused",
                )
    if not any(set(placed.hosts) & set(inventory.limit) for placed in everything):
        yield Refusal(
            id="nothing-here",
            what=f"no deployment names {', '.join(inventory.limit)}",
            expected=f"one of {_placed(everything)}",
            fix="limit to a host that has a deployment, or add one to vllm_deployments.",
            runbook="inventory-refused",
        )


def _placed(everything: Sequence[Deployment]) -> str:
    return ", ".join(f"{d.name} on {'+'.join(d.hosts)}" for d in everything) or "none: vllm_deployments is empty"


def _pairing(placed: Deployment, document: Mapping[str, Any], limit: Sequence[str]) -> Iterator[Refusal]:
    nodes = document["topology"]["nodes"]
    if len(placed.hosts) != nodes:
        yield Refusal(
            id="host-count",
            what=f"deployment {placed.name} has {len(placed.hosts)} hosts ({', '.join(placed.hosts)})",
            expected=f"{nodes}, which recipe {placed.recipe} is for",
            fix=f"correct hosts of {placed.name}, or name another recipe.",
            runbook="inventory-refused",
        )
    absent = [name for name in placed.hosts if name not in limit]
    if absent:
        yield Refusal(
            id="half-a-pair",
            what=f"the limit leaves out {', '.join(absent)} of deployment {placed.name}",
            expected="all of its hosts, because a pair is one service",
            fix=f"-l {','.join(placed.hosts)}.",
            runbook="inventory-refused",
        )


def _locking(document: Mapping[str, Any], digest: str) -> Iterator[Refusal]:
    if not DIGEST.fullmatch(digest):
        has = f"has the digest {digest}" if digest else "has no digest"
        yield Refusal(
            id="not-locked",
            what=f"recipe {document['name']}: image {locked_name(document)} {has}",
            expected="sha256: and 64 hex digits as image.digest of the recipe or in the inventory's lock file",
            fix="add the sha256 that the registry reports for this platform.",
            runbook="image-not-locked",
        )


def _secrets(document: Mapping[str, Any], given: Mapping[str, bool]) -> Iterator[Refusal]:
    empty = [name for name, filled in sorted(given.items()) if not filled]
    missing = [name for name in document.get("secrets", []) if name not in given]
    for name, state in [(name, "is empty") for name in empty] + [(name, "is not set") for name in missing]:
        yield Refusal(
            id="secret-empty",
            what=f"vllm_secrets.{name} {state}",
            expected="a value on one line, from vault or the environment",
            fix=f"set it (ansible-vault encrypt_string, or export {name} and lookup('env', '{name}')).",
            runbook="secrets",
        )


def _not_built_yet(document: Mapping[str, Any]) -> Iterator[Refusal]:
    """Shapes that the schema already knows and the toolkit cannot place yet."""
    if document["topology"]["nodes"] > 1:
        yield Refusal(
            id="pair-unsupported",
            what=f"recipe {document['name']} is for {document['topology']['nodes']} Sparks",
            expected="a recipe for one Spark, the only kind that this version deploys",
            fix="name a recipe whose topology.nodes is 1.",
            runbook="recipe-refused",
        )
    if document.get("patches"):
        yield Refusal(
            id="patches-unsupported",
            what=f"recipe {document['name']} has patches",
            expected="mounts, because this version builds no derived images",
            fix="mount the patched file (mounts), with its checksum.",
            runbook="recipe-refused",
        )
