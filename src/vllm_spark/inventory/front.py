"""The edge of a Spark that is the head of no active deployment: `vllm_edge.site` names the Spark, so it forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from vllm_spark.core.types import Document
from vllm_spark.inventory import edge_backends
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.edge import EdgeBackend, EdgeSettings
from vllm_spark.inventory.edge_backends import Membership, Neighbour
from vllm_spark.recipe.lockfile import Lock


class EdgeOwner(Protocol):
    """A host as its edge sees it: a Spec or a Front. Spec describes the fields."""

    @property
    def host(self) -> str: ...
    @property
    def edge(self) -> EdgeSettings: ...
    @property
    def backends(self) -> tuple[EdgeBackend, ...]: ...
    @property
    def neighbours(self) -> tuple[Neighbour, ...]: ...
    @property
    def left_out(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Front:
    """A host without an active deployment that has an edge. `backends` are inactive deployments whose head it is."""

    host: str
    edge: EdgeSettings
    backends: tuple[EdgeBackend, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the front as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Document) -> Front:
        """Build from the result of `to_json`."""
        return cls(
            host=document["host"],
            edge=EdgeSettings.from_json(document["edge"]),
            backends=tuple(EdgeBackend.from_json(one) for one in document["backends"]),
            neighbours=tuple(Neighbour.from_json(one) for one in document["neighbours"]),
            left_out=tuple(document["left_out"]),
        )


def only_forwards(owner: EdgeOwner) -> bool:
    """Return True for an edge without a model of its own Spark: it has no address for other edges."""
    return bool(owner.neighbours) and not owner.backends


def is_asked(owner: EdgeOwner) -> bool:
    """Return True for an edge that the other edges of its site ask, on `site_port`."""
    return bool(owner.backends) and owner.edge.joins(owner.host)


def surroundings(
    member: Membership,
    deployments: Sequence[Deployment],
    everywhere: Sequence[Deployment],
    folders: Sequence[Path],
    lock: Lock,
) -> Front:
    """Return what the edge of a host routes to. `deployments` are those of this run, `everywhere` those of the whole
    inventory: a switch concerns a part of them, and a site has all. Raises RefusedError."""
    host, settings = member.host, member.settings
    backends = () if settings.open else edge_backends.of_host(deployments, host, folders)
    if not settings.joins(host):
        return Front(host, settings, backends)
    neighbours = edge_backends.neighbours(everywhere, member, folders, lock)
    return Front(host, settings, backends, neighbours, edge_backends.left_out(everywhere, settings))
