"""The key of the router in front of a deployment."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "router-key",
    runbook="secrets",
    severity="refusal",
    needs=(),
    what="{deployment}.through.key names {key}, and vllm_secrets has none of that name",
    expected="the variable that holds the router's key",
    fix="add {key} to vllm_secrets, or remove through.key if the router needs no key.",
)
def router_key(context: HostContext) -> Iterator[Observation]:
    spec = context.spec
    key = spec.deployment.through.get("key")
    if key and key not in spec.secrets and spec.rank == 0:
        yield Observation({"deployment": spec.deployment.name, "key": key})
