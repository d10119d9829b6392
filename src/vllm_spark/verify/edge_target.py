"""Where an edge listens: what its gate asks and clients use. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_spark.core.ports import ALL_INTERFACES, LOOPBACK
from vllm_spark.edge import config
from vllm_spark.inventory.edge import OFF
from vllm_spark.inventory.host_edge import Edge


@dataclass(frozen=True, slots=True)
class EdgeTarget:
    """An edge, or an open engine, as its clients see it.

    `address` is how its own Spark reaches it, `bind` where it listens, empty if unknown. `tls` is that of vllm_edge.
    `site_port` is the port that other edges ask, None if they ask nothing."""

    address: str
    port: int
    bind: str = ""
    tls: str = OFF
    site_port: int | None = None

    @classmethod
    def of_edge(cls, edge: Edge) -> EdgeTarget:
        """Return the first address of an edge. All of its addresses lead to all of its models."""
        bind, _, port = config.listeners(edge)[0].rpartition(":")
        address = LOOPBACK if bind == ALL_INTERFACES else bind
        site_port = edge.settings.site_port if edge.is_asked else None
        return cls(address, int(port), bind, edge.settings.tls, site_port)

    def client_url(self, host: str) -> str:
        """Return the URL for clients. `host` is the address of the Spark in the inventory."""
        address = host if self.bind in ("", ALL_INTERFACES) else self.bind
        scheme = "http" if self.tls == OFF else "https"
        return f"{scheme}://{f'[{address}]' if ':' in address else address}:{self.port}"
