"""Stage 1: from the inventory alone to the spec of what shall run on one Spark. No box is asked.

The spec is plain JSON, because Ansible carries it from this stage to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.engine_version import release
from vllm_spark.core.host_layout import CONFIG_DIR
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.inventory import deployment
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.network.pair import Pair
from vllm_spark.recipe import derived_image, hub_cache, known_issues, loader, lockfile
from vllm_spark.recipe.derived_image import DerivedImage

UNKNOWN_HOST = register("unknown-host", runbook="inventory-refused")
NOTHING_HERE = register("nothing-here", runbook="inventory-refused")
HOST_COUNT = register("host-count", runbook="inventory-refused")
HALF_A_PAIR = register("half-a-pair", runbook="inventory-refused")
EXECUTOR_OF_ONE = register("executor-of-one", runbook="pair-executor")
NO_RAY = register("no-ray", runbook="pair-executor")
NO_MP_NODES = register("no-mp-nodes", runbook="pair-executor")
SECRET_EMPTY = register("secret-empty", runbook="secrets")

# The first release with --nnodes.
MP_NODES_SINCE = (0, 12)


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """What an inventory may say of its boxes: where their large data lie, and where they get Python packages."""

    hub_dir: str = "/var/lib/vllm-spark/hub"
    cache_dir: str = "/var/lib/vllm-spark/cache"
    pip_index: str = ""


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
    accepted: tuple[str, ...] = ()
    site: SiteSettings = SiteSettings()
    # Set by ranks.join, which knows both boxes; no step before it has one.
    pair: Pair | None = None

    @property
    def base(self) -> str:
        """What a registry has: never a tag."""
        return f"{self.recipe['image']['repository']}@{self.digest}"

    @property
    def derived(self) -> DerivedImage | None:
        """The image that the recipe makes of its base, where it makes one."""
        return derived_image.derived_image(self.recipe, self.files)

    @property
    def image(self) -> str:
        """What `docker run` is given: a digest, or the name of a derived image, which has the hash of its inputs."""
        return made.image if (made := self.derived) else self.base

    @property
    def platforms(self) -> Sequence[str]:
        return self.recipe["image"].get("platforms", lockfile.DEFAULT_PLATFORMS)  # type: ignore[no-any-return]

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
            deployment=Deployment.from_json(placed),
            inactive=tuple(given.pop("inactive")),
            secrets=tuple(given.pop("secrets")),
            accepted=tuple(given.pop("accepted")),
            site=SiteSettings(**given.pop("site")),
            pair=Pair(**joined) if (joined := given.pop("pair")) else None,
            **given,
        )


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a run was given: the desired state and its limits. `secrets` maps names to whether they have a value,
    `accepted` are ids of known issues that the operator wants to go on with."""

    deployments: object
    sparks: tuple[str, ...]
    limit: tuple[str, ...]
    recipe_folders: tuple[Path, ...] = (paths.RECIPES,)
    lock_file: Path | None = None
    secrets: Mapping[str, bool] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    site: SiteSettings = SiteSettings()

    @classmethod
    def from_args(cls, given: Mapping[str, Any]) -> Inventory:
        """Of the arguments of an action; of the secrets it keeps only whether they have a value."""
        return cls(
            deployments=given["deployments"],
            sparks=tuple(given["sparks"]),
            limit=tuple(given["limit"]),
            recipe_folders=tuple(Path(folder) for folder in given["recipe_folders"]),
            lock_file=Path(given["lock_file"]),
            secrets={name: bool(value) for name, value in given["secrets"].items()},
            accepted=tuple(given["accepted"]),
            site=SiteSettings(**given["site"]),
        )


def resolve(inventory: Inventory, host: str) -> Spec | None:
    """The spec of one Spark, or None where the inventory leaves it idle. Raises RefusedError with every fault."""
    everything = deployment.parse(inventory.deployments)
    refusals = list(_placement(everything, inventory))
    if refusals:
        raise RefusedError(refusals)
    active = deployment.active_of_host(everything, host)
    if active is None:
        return None
    loaded = loader.load(active.recipe, inventory.recipe_folders)
    locks = lockfile.read(inventory.lock_file)
    document = lockfile.pinned(loader.merged(loaded, active.overrides), locks)
    accepted = sorted({*active.accept_known_issues, *inventory.accepted})
    refusals = [
        *_pairing(active, document, inventory.limit),
        *lockfile.refusals(document, locks),
        *_executor(document),
        *known_issues.refusals(known_issues.Subject(document, tuple(inventory.secrets), active.bind), accepted),
        *_secrets(document, inventory.secrets),
        *derived_image.index_refusals(inventory.site.pip_index),
    ]
    if refusals:
        raise RefusedError(refusals)
    return Spec(
        host=host,
        rank=active.hosts.index(host),
        deployment=active,
        recipe=document,
        recipe_sha256=loaded.sha256,
        digest=document["image"]["digest"],
        files=loaded.files,
        inactive=tuple(d.name for d in deployment.of_host(everything, host) if not d.active),
        secrets=tuple(sorted(inventory.secrets)),
        accepted=tuple(accepted),
        site=inventory.site,
    )


def inactive_units(inventory: Inventory, host: str) -> list[str]:
    """The units that the inventory has made inactive on a Spark, for one that shall be idle."""
    everything = deployment.parse(inventory.deployments)
    return [placed.unit for placed in deployment.of_host(everything, host) if not placed.active]


def _placement(everything: Sequence[Deployment], inventory: Inventory) -> Iterator[Refusal]:
    for placed in everything:
        for name in placed.hosts:
            if name not in inventory.sparks:
                yield UNKNOWN_HOST(
                    what=f"deployment {placed.name} names {name}",
                    expected=f"hosts of the group sparks: {', '.join(inventory.sparks)}",
                    fix=f"add {name} to the inventory, or correct hosts of {placed.name}.",
                )
    if not any(set(placed.hosts) & set(inventory.limit) for placed in everything):
        yield NOTHING_HERE(
            what=f"no deployment names {', '.join(inventory.limit)}",
            expected=f"one of {_placed(everything)}",
            fix="limit to a host that has a deployment, or add one to vllm_deployments.",
        )


def _placed(everything: Sequence[Deployment]) -> str:
    return ", ".join(f"{d.name} on {'+'.join(d.hosts)}" for d in everything) or "none: vllm_deployments is empty"


def _pairing(placed: Deployment, document: Mapping[str, Any], limit: Sequence[str]) -> Iterator[Refusal]:
    nodes = document["topology"]["nodes"]
    if len(placed.hosts) != nodes:
        yield HOST_COUNT(
            what=f"deployment {placed.name} has {len(placed.hosts)} hosts ({', '.join(placed.hosts)})",
            expected=f"{nodes}, which recipe {placed.recipe} is for",
            fix=f"correct hosts of {placed.name}, or name another recipe.",
        )
    absent = [name for name in placed.hosts if name not in limit]
    if absent:
        head = ", the head," if absent[0] == placed.hosts[0] else ""
        yield HALF_A_PAIR(
            what=f"the limit leaves out {', '.join(absent)}{head} of deployment {placed.name}",
            expected="all of its hosts, because a pair is one service",
            fix=f"run the same command with -l {','.join(placed.hosts)}.",
        )


def _executor(document: Mapping[str, Any]) -> Iterator[Refusal]:
    """Executors that this engine or its image cannot run on two Sparks."""
    engine, topology, name = document["engine"], document["topology"], lockfile.locked_name(document)
    if topology["nodes"] == 1 and topology["executor"] == "ray":
        yield EXECUTOR_OF_ONE(
            what=f"overrides give recipe {document['name']} executor ray, and it is for one Spark",
            expected="the recipe's own",
            fix="take topology.executor out of the overrides.",
        )
    if topology["nodes"] > 1 and topology["executor"] == "ray" and "ray" not in engine:
        yield NO_RAY(
            what=f"recipe {document['name']} has executor ray, and its image {name} no engine.ray",
            expected="the version of Ray that the image holds, because vLLM's own images have none",
            fix="name an image with Ray and its version as engine.ray, or use executor mp.",
        )
    if topology["nodes"] > 1 and topology["executor"] == "mp" and release(engine["version"]) < MP_NODES_SINCE:
        yield NO_MP_NODES(
            what=f"vLLM {engine['version']} of recipe {document['name']} has no --nnodes",
            expected=f"{'.'.join(map(str, MP_NODES_SINCE))} or later for executor mp on two Sparks",
            fix="use executor ray, or a later engine.",
        )


def _secrets(document: Mapping[str, Any], given: Mapping[str, bool]) -> Iterator[Refusal]:
    empty = [name for name, filled in sorted(given.items()) if not filled]
    missing = [name for name in document.get("secrets", []) if name not in given]
    for name, state in [(name, "is empty") for name in empty] + [(name, "is not set") for name in missing]:
        yield SECRET_EMPTY(
            what=f"vllm_secrets.{name} {state}",
            expected="a value on one line, from vault or the environment",
            fix=f"set it (ansible-vault encrypt_string, or export {name} and lookup('env', '{name}')).",
        )


def mount_source(spec: Spec, mount: Mapping[str, Any]) -> str:
    """Where a recipe's mounted file lies on the box."""
    if mount["from"] == "model":
        return f"{hub_cache.snapshot(spec.site.hub_dir, spec.recipe['model'])}/{mount['path']}"
    return f"{spec.config_dir}/mounts/{mount['sha256'][:12]}-{mount['path'].rpartition('/')[2]}"
