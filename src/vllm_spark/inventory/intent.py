"""What the inventory wants of one host: a rank of a deployment, an edge, both or neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.inventory import spec
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.spec import Inventory, Spec


@dataclass(frozen=True, slots=True)
class HostIntent:
    """One host, resolved.

    - `rank`: None for a host on which no deployment is active
    - `edge`: that of a rank, or of a host that only forwards; None without both
    - `inactive`: names of the host's inactive deployments
    """

    host: str
    rank: Spec | None = None
    edge: Edge | None = None
    inactive: tuple[str, ...] = ()

    @classmethod
    def of_rank(cls, rank: Spec) -> HostIntent:
        """Return the intent of a host with a rank."""
        return cls(rank.host, rank, rank.edge, rank.inactive)

    def to_json(self) -> dict[str, Any]:
        """Return the rank and the edge as JSON types. A rank contains its edge."""
        alone = self.edge if self.rank is None else None
        return {
            "spec": self.rank.to_json() if self.rank else None,
            **({"edge": alone.to_json()} if alone else {}),
        }

    @classmethod
    def from_json(cls, host: str, document: Document) -> HostIntent:
        """Build from the result of `to_json`, which has been asked about its inactive deployments before."""
        if document["spec"]:
            return cls.of_rank(Spec.from_json(document["spec"]))
        return cls(host, edge=Edge.from_json(document["edge"]) if document.get("edge") else None)


def resolve(inventory: Inventory, host: str) -> HostIntent:
    """Return the intent of one host. Raises RefusedError with every fault."""
    if rank := spec.resolve(inventory, host):
        return HostIntent.of_rank(rank)
    return HostIntent(host, None, spec.edge_alone(inventory, host), spec.inactive(inventory, host))


def ranks_of(intents: Mapping[str, HostIntent]) -> dict[str, Spec]:
    """Return the ranks of hosts, the order of the hosts kept."""
    return {host: intent.rank for host, intent in intents.items() if intent.rank}
