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
from vllm_spark.engine import release
from vllm_spark.pair import Pair
from vllm_spark.refusal import Refusal, RefusedError

# Constant, because the unit, which is the same text everywhere, names it.
CONFIG_DIR = "/etc/vllm-spark"
UNIT_FILE = "/etc/systemd/system/vllm@.service"

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# The first release with --nnodes, and the first whose Marlin pads a half expert (vLLM marlin_utils_fp4.py).
MP_NODES_SINCE = (0, 12)
MARLIN_PADS_SINCE = (0, 24)

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
    # Set by ranks.join, which knows both boxes; no step before it has one.
    pair: Pair | None = None

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
            pair=Pair(**joined) if (joined := given.pop("pair")) else None,
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
        *_executor(document),
        *_split_experts(document),
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


def inactive_units(inventory: Inventory, host: str) -> list[str]:
    """The units that the inventory has made inactive on a Spark, for one that shall be idle."""
    everything = deployments.parse(inventory.deployments)
    return [placed.unit for placed in deployments.of_host(everything, host) if not placed.active]


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
        head = ", the head," if absent[0] == placed.hosts[0] else ""
        yield Refusal(
            id="half-a-pair",
            what=f"the limit leaves out {', '.join(absent)}{head} of deployment {placed.name}",
            expected="all of its hosts, because a pair is one service",
            fix=f"run the same command with -l {','.join(placed.hosts)}.",
            runbook="inventory-refused",
        )


def _executor(document: Mapping[str, Any]) -> Iterator[Refusal]:
    """Executors that this engine or its image cannot run on two Sparks."""
    engine, topology = document["engine"], document["topology"]
    if topology["nodes"] == 1 and topology["executor"] == "ray":
        yield Refusal(
            id="executor-of-one",
            what=f"overrides give recipe {document['name']} executor ray, and it is for one Spark",
            expected="the recipe's own",
            fix="take topology.executor out of the overrides.",
            runbook="pair-executor",
        )
    if topology["nodes"] > 1 and topology["executor"] == "ray" and "ray" not in engine:
        yield Refusal(
            id="no-ray",
            what=f"recipe {document['name']} has executor ray, and its image {locked_name(document)} no engine.ray",
            expected="the version of Ray that the image holds, because vLLM's own images have none",
            fix="name an image with Ray and its version as engine.ray, or use executor mp.",
            runbook="pair-executor",
        )
    if topology["nodes"] > 1 and topology["executor"] == "mp" and release(engine["version"]) < MP_NODES_SINCE:
        yield Refusal(
            id="no-mp-nodes",
            what=f"vLLM {engine['version']} of recipe {document['name']} has no --nnodes",
            expected=f"{'.'.join(map(str, MP_NODES_SINCE))} or later for executor mp on two Sparks",
            fix="use executor ray, or a later engine.",
            runbook="pair-executor",
        )


def _split_experts(document: Mapping[str, Any]) -> Iterator[Refusal]:
    """vLLM #39595, #42516, #41947: half of an expert's 704 columns is 352, which no NVFP4 kernel but Marlin since 0.24
    can pad to its scale tile."""
    args, halves = document["args"], document["topology"]["tensor_parallel"] > 1
    name = document["model"]["repository"].lower()
    padded = args.get("moe-backend") == "marlin" and release(document["engine"]["version"]) >= MARLIN_PADS_SINCE
    if halves and "26b-a4b" in name and "nvfp4" in name and not args.get("enable-expert-parallel") and not padded:
        yield Refusal(
            id="experts-split",
            what=f"recipe {document['name']} splits {document['model']['repository']}'s experts in two: 704/2 is 352",
            expected="whole experts on each Spark, because the scale tile of NVFP4 has 128 rows (vLLM #42516)",
            fix="set args.enable-expert-parallel: true; or moe-backend: marlin with vLLM 0.24 or later.",
            runbook="pair-executor",
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
    if document.get("patches"):
        yield Refusal(
            id="patches-unsupported",
            what=f"recipe {document['name']} has patches",
            expected="mounts, because this version builds no derived images",
            fix="mount the patched file (mounts), with its checksum.",
            runbook="recipe-refused",
        )
