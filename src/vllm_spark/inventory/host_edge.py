"""The edge of one host: who reaches the model servers behind it, and to which it routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.inventory import edge_backends
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.edge import EdgeBackend, EdgeSettings
from vllm_spark.inventory.edge_backends import Membership, Neighbour
from vllm_spark.node.engine_api import CHAT
from vllm_spark.recipe.lockfile import Lock


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge of a host.

    - `settings`: who reaches it; while they are open, the engine itself is on the network
    - `backends`: the deployments, active or not, whose head the host is; none while the edge is open
    - `neighbours`: the other Sparks whose models the edge serves too; `left_out`: a line per Spark that is none of them
    - `unusable`: a line per inactive deployment of this head whose recipe or overrides are refused
    - `parts`: the pairs of which the host is not the head -> their heads; none while the edge is open
    """

    host: str
    settings: EdgeSettings
    backends: tuple[EdgeBackend, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    left_out: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_wanted(self) -> bool:
        """True for a closed edge, which a deploy installs."""
        return bool(self.backends or self.neighbours)

    @property
    def only_forwards(self) -> bool:
        """True for an edge without a model of its own Spark: it has no address for other edges."""
        return bool(self.neighbours) and not self.backends

    @property
    def joins(self) -> bool:
        """True for an edge of a site."""
        return not self.settings.open and self.host in self.settings.site

    @property
    def is_asked(self) -> bool:
        """True for an edge that the other edges of its site ask, on `site_port`."""
        return bool(self.backends) and self.joins

    @property
    def special_roles(self) -> frozenset[str]:
        """The roles beside chat of all models that the edge serves. Without one its configuration is that of chats."""
        everywhere = (*self.backends, *(backend for one in self.neighbours for backend in one.backends))
        return frozenset(backend.role for backend in everywhere) - {CHAT}

    def to_json(self) -> dict[str, Any]:
        """Return the edge as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Document) -> Edge:
        """Build from the result of `to_json`."""
        return cls(
            host=document["host"],
            settings=EdgeSettings.from_json(document["settings"]),
            backends=tuple(EdgeBackend.from_json(one) for one in document["backends"]),
            neighbours=tuple(Neighbour.from_json(one) for one in document["neighbours"]),
            left_out=tuple(document["left_out"]),
            unusable=tuple(document["unusable"]),
            parts=document["parts"],
        )


def of_host(
    member: Membership,
    deployments: Sequence[Deployment],
    everywhere: Sequence[Deployment],
    folders: Sequence[Path],
    lock: Lock,
) -> Edge:
    """Return the edge of a host. `deployments` are those of this run, `everywhere` those of the whole inventory: a
    switch concerns a part of them, and a site has all. Raises RefusedError."""
    host, settings = member.host, member.settings
    headed, unusable = edge_backends.of_host(deployments, host, folders)
    if settings.open:
        return Edge(host, settings, unusable=unusable)
    if refusals := list(edge_backends.same_name_refusals(deployments, headed, host)):
        raise RefusedError(refusals)
    parts = {each.name: each.hosts[0] for each in deployments if host in each.hosts[1:]}
    alone = Edge(host, settings, headed, unusable=unusable, parts=parts)
    if not alone.joins:
        return alone
    neighbours = edge_backends.neighbours(everywhere, member, folders, lock)
    return replace(alone, neighbours=neighbours, left_out=edge_backends.left_out(everywhere, settings))
