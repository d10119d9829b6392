"""The choice between an open and a closed server, for a deployment that clients use already."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "edge-not-chosen",
    runbook="edge-not-chosen",
    severity="refusal",
    needs=("records",),
    what="{deployment} is open, in plain HTTP, and the inventory has no vllm_edge. A deploy would close it: "
    "its clients would then need https and a key",
    expected="vllm_edge in the inventory, because an open server closes only if you say so",
    fix="set `vllm_edge: {{open: false}}` for TLS and keys, or `vllm_edge: {{open: true}}` to keep it open.",
)
def edge_not_chosen(context: HostContext) -> Iterator[Observation]:
    """Yield the head of a deployment whose clients would be cut off. A record without `open` is older than the edge."""
    spec = context.spec
    record = context.facts["records"].get(spec.deployment.name)
    if record and spec.rank == 0 and not spec.edge.settings.chosen and record.get("open", True):
        yield Observation({"deployment": spec.deployment.name})
