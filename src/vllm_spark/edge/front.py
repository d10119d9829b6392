"""The edge of a Spark that is the head of no active deployment: what a deploy asks and says about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.host_layout import EDGE_UNIT
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Facts, PortHolder
from vllm_spark.edge import config, steps
from vllm_spark.inventory.front import EdgeOwner, Front, is_asked

PORT_TAKEN = register("front-port", runbook="port-taken")


def ports(owner: EdgeOwner) -> Iterator[int]:
    """Yield the ports on which the edge listens, each once."""
    yield from dict.fromkeys(int(one.rpartition(":")[2]) for one in config.listeners(owner))
    if is_asked(owner):
        yield owner.edge.site_port


def refusals(front: Front, facts: Facts) -> Iterator[Refusal]:
    """Yield a refusal per port that something else holds. The host's own deployments stop before the edge starts."""
    for port in ports(front):
        holder = facts.get("ports", {}).get(str(port))
        if holder and not _is_own(holder):
            yield PORT_TAKEN(
                what=f"port {port} of {front.host} is held by {format_holder(holder)}",
                expected=f"a free port for the edge of {front.host}, which vllm_edge.site names",
                fix=f"stop that process, or remove {front.host} from vllm_edge.site.",
            )


def _is_own(holder: PortHolder) -> bool:
    unit, container = str(holder.get("unit") or ""), str(holder.get("container") or "")
    return unit == EDGE_UNIT or unit.startswith("vllm@") or container.startswith("vllm-")


def lines(front: Front) -> list[str]:
    """Return what an operator reads about the edge of a Spark without an active deployment."""
    return [headline(front), *steps.site_lines(front)]


def headline(owner: EdgeOwner) -> str:
    """Return the line about an edge whose Spark serves no model."""
    return f"the edge here forwards: {steps.where(owner)}, with a key"


def format_holder(holder: PortHolder) -> str:
    """Return who holds a port, with its container or its unit."""
    owner = ""
    if holder.get("container"):
        owner = f", container {holder['container']}"
    elif holder.get("unit"):
        owner = f", unit {holder['unit']}"
    return f"{holder['process']} (pid {holder['pid']}{owner})"
