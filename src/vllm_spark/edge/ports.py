"""The ports on which an edge listens, and the refusal of an edge whose port something else holds. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Facts, PortHolder
from vllm_spark.edge import config
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node.host_layout import EDGE_UNIT

PORT_TAKEN = register("front-port", runbook="port-taken")


def ports(edge: Edge) -> Iterator[int]:
    """Yield the ports on which the edge listens, each once."""
    yield from dict.fromkeys(int(one.rpartition(":")[2]) for one in config.listeners(edge))
    if edge.is_asked:
        yield edge.settings.site_port


def refusals(edge: Edge, facts: Facts) -> Iterator[Refusal]:
    """Yield a refusal per port that something else holds, for a host that serves no model: its own deployments stop
    before the edge starts. The checks of a host that serves one say more."""
    for port in ports(edge):
        holder = facts.get("ports", {}).get(str(port))
        if holder and not _is_own(holder):
            yield PORT_TAKEN(
                what=f"port {port} of {edge.host} is held by {format_holder(holder)}",
                expected=f"a free port for the edge of {edge.host}, which vllm_edge.site names",
                fix=f"stop that process, or remove {edge.host} from vllm_edge.site.",
            )


def _is_own(holder: PortHolder) -> bool:
    unit, container = str(holder.get("unit") or ""), str(holder.get("container") or "")
    return unit == EDGE_UNIT or unit.startswith("vllm@") or container.startswith("vllm-")


def format_holder(holder: PortHolder) -> str:
    """Return who holds a port, with its container or its unit."""
    owner = ""
    if holder.get("container"):
        owner = f", container {holder['container']}"
    elif holder.get("unit"):
        owner = f", unit {holder['unit']}"
    return f"{holder['process']} (pid {holder['pid']}{owner})"
