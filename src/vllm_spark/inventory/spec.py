"""Stage 1 of a plan: the spec of one Spark, from the inventory and the recipes alone. No host is contacted.

The spec converts to plain JSON, because Ansible carries it to the next stage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.platforms import DEFAULT_PLATFORMS
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.inventory import deployment, edge, host_edge, notify, placement
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.edge import EdgeSettings
from vllm_spark.inventory.edge_backends import Membership, OtherEdge
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.rank_group import RankGroup
from vllm_spark.node.host_layout import CACHE_DIR, CONFIG_DIR, HUB_DIR, api_socket
from vllm_spark.recipe import (
    derived_image,
    hub_cache,
    image_name,
    known_issues,
    loader,
    lockfile,
)
from vllm_spark.recipe.conditions import Subject
from vllm_spark.recipe.derived_image import DerivedImage

# The key that the engine itself checks.
ENGINE_KEY = "VLLM_API_KEY"


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """Settings of the inventory for its Sparks: folders of large data on the host, the index of pip, and what every
    start does first: drop the page cache, switch swap off."""

    hub_dir: str = HUB_DIR
    cache_dir: str = CACHE_DIR
    pip_index: str = ""
    drop_caches: bool = False
    swap_off: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """One rank of one deployment, resolved: the recipe with overrides and pins.

    - `digest`: the digest of the image that the recipe names
    - `manifests`: OWNER/NAME@COMMIT -> sha256 of the model's list of files, as the lock file has it
    - `files`: the toolkit's files that the recipe mounts or patches with, path -> content
    - `inactive`: names of the host's inactive deployments
    - `elsewhere`: those of them that have further hosts, neither of this deployment nor of this run -> these hosts
    - `beside`: the other active deployments of the host -> their resolved recipes; empty for one that is alone there
    - `other_ports`: the ports of those of them whose head this host is
    - `port_set`: which ports its ranks use (core/ports.py)
    - `secrets`: names of the secrets in the inventory that this deployment uses; `unused_secrets`: of the others
    - `accepted`: ids of accepted known issues
    - `edge`: that of this host; while it is open, the launch is that of a server without an edge
    """

    host: str
    rank: int
    deployment: Deployment
    recipe: Document
    recipe_sha256: str
    digest: str
    edge: Edge
    files: Mapping[str, str] = field(default_factory=dict)
    manifests: Mapping[str, str] = field(default_factory=dict)
    inactive: tuple[str, ...] = ()
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    beside: Mapping[str, Document] = field(default_factory=dict)
    other_ports: tuple[int, ...] = ()
    port_set: int = 0
    secrets: tuple[str, ...] = ()
    unused_secrets: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    site: SiteSettings = SiteSettings()
    # ranks.join sets them from the facts of the hosts.
    gpu_by_cdi: bool = False
    group: RankGroup | None = None
    launch: str = ""  # the fingerprint of a launch on the host that is the same server; empty if there is none

    @property
    def open(self) -> bool:
        """True if the engine itself listens on the network."""
        return self.edge.settings.open

    @property
    def in_turn(self) -> bool:
        """True if one of the Sparks of the deployment is shared. Only joined ranks know it of each other."""
        return self.group.in_turn if self.group else bool(self.beside)

    @property
    def source(self) -> str:
        """The image in its registry, by digest and never by tag. Messages and evidence name it."""
        return f"{self.recipe['image']['repository']}@{self.digest}"

    @property
    def base(self) -> str:
        """The image in Docker, by the same digest."""
        return image_name.local_name(self.recipe["image"]["repository"], self.digest)

    @property
    def derived(self) -> DerivedImage | None:
        """The image that the recipe builds from its base, or None if it builds none."""
        return derived_image.derived_image(self.recipe, self.files)

    @property
    def image(self) -> str:
        """The image of `docker run`: by digest, or a derived image by name, which contains the hash of its inputs."""
        return derived.image if (derived := self.derived) else self.base

    @property
    def platforms(self) -> Sequence[str]:
        """The platforms that the image may have, the preferred one first."""
        platforms: Sequence[str] = self.recipe["image"].get("platforms", DEFAULT_PLATFORMS)
        return platforms

    @property
    def socket(self) -> str:
        """The socket on which a closed engine listens; empty for one that listens on a port."""
        return "" if self.open else api_socket(self.deployment.name)

    @property
    def has_engine_key(self) -> bool:
        """Whether the engine itself checks a key. A closed one does not: only the edge and root reach its socket."""
        return self.open and ENGINE_KEY in self.secrets

    @property
    def issue_subject(self) -> Subject:
        """What known issues are about."""
        return _issue_subject(self.recipe, self.secrets, self.deployment, self.edge.settings)

    @property
    def config_dir(self) -> str:
        """The folder of the deployment on its host."""
        return f"{CONFIG_DIR}/{self.deployment.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Document) -> Spec:
        """Build from the result of `to_json`."""
        fields = dict(document)
        return cls(
            deployment=Deployment.from_json(fields.pop("deployment")),
            site=SiteSettings(**fields.pop("site")),
            edge=Edge.from_json(fields.pop("edge")),
            inactive=tuple(fields.pop("inactive")),
            other_ports=tuple(fields.pop("other_ports")),
            secrets=tuple(fields.pop("secrets")),
            unused_secrets=tuple(fields.pop("unused_secrets")),
            accepted=tuple(fields.pop("accepted")),
            group=RankGroup.from_json(group) if (group := fields.pop("group")) else None,
            **fields,
        )


@dataclass(frozen=True, slots=True)
class Inventory:
    """The desired state of all Sparks and the limits of a run.

    - `deployments`: `vllm_deployments` as it is, not yet checked
    - `sparks`: the hosts of the group
    - `limit`: the hosts of the run
    - `secrets`: name -> True if it has a value
    - `accepted`: ids of known issues that the operator accepts for this run
    - `everywhere`: `vllm_deployments` if `deployments` are only a part of it, as in a switch; None if they are all
    - `edge`, `notification`: `vllm_edge` and `vllm_notify` as they are, not yet checked
    - `edges`: of every Spark, by its name, for a site with one address
    - `chosen`: the deployments of this turn (deployment.turns); empty means the first ones
    - `own`: the hosts that are the machine that deploys, with their addresses; `own_names`: the names that it has
    """

    deployments: object
    sparks: tuple[str, ...]
    limit: tuple[str, ...]
    recipe_folders: tuple[Path, ...] = (paths.RECIPES,)
    lock_file: Path | None = None
    secrets: Mapping[str, bool] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    site: SiteSettings = SiteSettings()
    everywhere: object = None
    chosen: tuple[str, ...] = ()
    edge: object = field(default_factory=dict)
    notification: object = field(default_factory=dict)
    edges: Mapping[str, OtherEdge] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    own_names: tuple[str, ...] = ()

    @classmethod
    def from_args(cls, args: Document) -> Inventory:
        """Build from the arguments of an action plugin. A secret's value is reduced to a bool: set or empty."""
        return cls(
            deployments=args["deployments"],
            # YAML reads 1 as a number.
            sparks=tuple(map(str, args["sparks"])),
            limit=tuple(map(str, args["limit"])),
            recipe_folders=tuple(Path(folder) for folder in args["recipe_folders"]),
            lock_file=Path(args["lock_file"]),
            secrets={
                # The other names are refused: YAML reads true, on and 1 as no text.
                name if isinstance(name, str) else f"{name} ({type(name).__name__})": bool(value)
                for name, value in args["secrets"].items()
            },
            accepted=tuple(args["accepted"]),
            site=SiteSettings(**args["site"]),
            everywhere=args.get("everywhere"),
            chosen=tuple(args.get("chosen") or ()),
            edge=args.get("edge", {}),
            notification=args.get("notification", {}),
            edges={host: OtherEdge(**other) for host, other in args.get("edges", {}).items()},
            own=args.get("own", {}),
            own_names=tuple(args.get("own_names", ())),
        )


def resolve(inventory: Inventory, host: str) -> Spec | None:
    """Return the spec of one host, or None if it has no active deployment. Raises RefusedError with every fault."""
    deployments = deployment.parse(inventory.deployments)
    settings = edge.parse(inventory.edge)
    notification = notify.parse(inventory.notification, inventory.secrets)
    refusals = [
        *placement.host_refusals(deployments, inventory.sparks, inventory.limit, settings.site),
        *(deployment.same_port_refusals(deployments, host) if settings.open else ()),
        *placement.own_refusals(inventory.own, inventory.own_names),
    ]
    if refusals:
        raise RefusedError(refusals)
    if not (on_host := deployment.active_of_host(deployments, host, inventory.chosen)):
        return None
    active, *others = on_host
    loaded = loader.load(active.recipe, inventory.recipe_folders)
    overridden = placement.overridden(active, loaded)
    lock = lockfile.read(inventory.lock_file)
    recipe = lockfile.pinned(overridden, lock)
    accepted = sorted({*active.accept_known_issues, *inventory.accepted})
    refusals = [
        *placement.rank_refusals(active, recipe, inventory.limit),
        *lockfile.refusals(recipe, lock),
        *placement.executor_refusals(recipe),
        *known_issues.refusals(_issue_subject(recipe, inventory.secrets, active, settings), accepted),
        *placement.secret_refusals(recipe, inventory.secrets),
        *derived_image.index_refusals(inventory.site.pip_index),
    ]
    if refusals:
        raise RefusedError(refusals)
    own_edge = _edge(inventory, deployments, Membership(host, settings, inventory.edges), lock)
    # The engine does not need the secret of those who are told.
    unused = _unused_secrets(active, settings) | ({notification.get("secret", "")} - set(recipe.get("secrets", ())))
    return Spec(
        host=host,
        rank=active.hosts.index(host),
        deployment=active,
        recipe=recipe,
        recipe_sha256=loaded.sha256,
        digest=recipe["image"]["digest"],
        edge=own_edge,
        files=loaded.files,
        manifests=lockfile.manifests(overridden, recipe, lock),
        inactive=_inactive(deployments, host),
        elsewhere={
            other.name: further
            for other in deployment.of_host(deployments, host)
            if not other.active
            and (further := [name for name in other.hosts if name not in {*active.hosts, *inventory.limit}])
        },
        beside={other.name: _pinned(inventory, other, lock) for other in others},
        other_ports=tuple(other.port for other in others if other.hosts[0] == host),
        port_set=deployment.port_set(deployments, active.name),
        secrets=tuple(sorted(inventory.secrets.keys() - unused)),
        unused_secrets=tuple(sorted(inventory.secrets.keys() & unused)),
        accepted=tuple(accepted),
        site=inventory.site,
    )


def _pinned(inventory: Inventory, placed: Deployment, lock: lockfile.Lock) -> Document:
    """Return the resolved recipe of a deployment beside that of this turn. Raises RefusedError."""
    return lockfile.pinned(placement.overridden(placed, loader.load(placed.recipe, inventory.recipe_folders)), lock)


def edge_alone(inventory: Inventory, host: str) -> Edge | None:
    """Return the edge of a host for which `resolve` returns None; None if it has none. Raises RefusedError."""
    settings = edge.parse(inventory.edge)
    if not Edge(host, settings).joins:
        return None
    everywhere = inventory.deployments if inventory.everywhere is None else inventory.everywhere
    member, lock = Membership(host, settings, inventory.edges), lockfile.read(inventory.lock_file)
    found = _edge(inventory, deployment.parse(everywhere), member, lock)
    return found if found.neighbours else None


def _edge(inventory: Inventory, deployments: Sequence[Deployment], member: Membership, lock: lockfile.Lock) -> Edge:
    everywhere = deployments if inventory.everywhere is None else deployment.parse(inventory.everywhere)
    return host_edge.of_host(member, deployments, everywhere, inventory.recipe_folders, lock)


def _unused_secrets(placed: Deployment, settings: EdgeSettings) -> set[str]:
    """Return names of secrets that must reach neither the launch nor the env file: a closed engine checks no key."""
    return set() if settings.open or placed.through.get("key") == ENGINE_KEY else {ENGINE_KEY}


def _issue_subject(recipe: Document, secrets: Collection[str], placed: Deployment, settings: EdgeSettings) -> Subject:
    """Return what known issues are about. A closed engine has no address on the network, and no key."""
    if settings.open:
        return Subject(recipe, tuple(secrets), placed.bind)
    return known_issues.of_closed(recipe, tuple(name for name in secrets if name != ENGINE_KEY))


def inactive(inventory: Inventory, host: str) -> tuple[str, ...]:
    """Return the names of a host's inactive deployments."""
    return _inactive(deployment.parse(inventory.deployments), host)


def _inactive(deployments: Sequence[Deployment], host: str) -> tuple[str, ...]:
    return tuple(placed.name for placed in deployment.of_host(deployments, host) if not placed.active)


def mount_source(spec: Spec, mount: Document) -> str:
    """Return the path on the host of a file that the recipe mounts. `mount` is an entry of its `mounts`."""
    if mount["from"] == "model":
        return f"{hub_cache.snapshot(spec.site.hub_dir, spec.recipe['model'])}/{mount['path']}"
    return f"{spec.config_dir}/mounts/{mount['sha256'][:12]}-{mount['path'].rpartition('/')[2]}"
