"""The ports that a rank listens on."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core import ports
from vllm_spark.deploy import holders
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.edge import ports as edge_ports
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.host_layout import EDGE_UNIT


def required_ports(spec: Spec) -> Iterator[int]:
    """Yield the ports that must be free, or held by the toolkit's own deployments or its edge."""
    if spec.rank == 0:
        yield spec.deployment.port
    if spec.edge.is_asked:
        yield spec.edge.settings.site_port
    if spec.edge.only_forwards:
        yield from edge_ports.ports(spec.edge)
    if len(spec.deployment.hosts) > 1:
        higher = spec.port_set * ports.PORT_SETS_APART
        yield from (higher + port for port in (ports.SUPERVISOR_PORT, ports.RAY_PORT, ports.MASTER_PORT))


@check(
    "port-taken",
    runbook="port-taken",
    severity="refusal",
    needs=("ports",),
    what="port {port} of {host} is held by {holder}",
    expected="a free port for {deployment}",
    fix="{how}{alternative}.",
)
def port_taken(context: HostContext) -> Iterator[Observation]:
    spec = context.spec
    deployment = spec.deployment
    others = (*spec.inactive, *spec.beside)
    containers = {deployment.container, *(f"vllm-{name}" for name in others)}
    # The edge listens on the port of a closed deployment, and a deploy that opens it stops the edge first.
    units = {deployment.unit, *(f"vllm@{name}.service" for name in others), EDGE_UNIT}
    for port in required_ports(spec):
        holder = context.facts["ports"].get(str(port))
        if holder and holder.get("container") not in containers and holder.get("unit") not in units:
            alternative = "" if port in ports.PORTS else f", or set another {_setting(spec, port)}"
            yield Observation(
                {
                    "port": str(port),
                    "holder": edge_ports.format_holder(holder),
                    "how": holders.how_to_stop(*holders.owner(holder), context.host, str(holder["pid"])),
                    "deployment": deployment.name,
                    "alternative": alternative,
                }
            )


def _setting(spec: Spec, port: int) -> str:
    if port == spec.edge.settings.site_port:
        return "vllm_edge.site_port"
    whose = spec.deployment.name if port == spec.deployment.port else "the deployments of vllm_edge.site"
    return f"`port` for {whose}"
