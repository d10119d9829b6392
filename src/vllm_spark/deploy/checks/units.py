"""Units of the toolkit that the inventory does not know."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext


@check(
    "unknown-deployment",
    runbook="inventory-refused",
    severity="refusal",
    needs=("running_units",),
    what="{unit} runs on {host} and is not in vllm_deployments",
    expected="only deployments of vllm_deployments, because nobody knows how much memory it takes",
    fix="add it with `active: false`, or: `ssh -t {host} sudo systemctl disable --now {unit}`.",
)
def unknown_deployment(context: HostContext) -> Iterator[Observation]:
    spec = context.spec
    known = {spec.deployment.unit, *(f"vllm@{name}.service" for name in (*spec.inactive, *spec.beside))}
    yield from (Observation({"unit": unit}) for unit in context.facts.get("running_units", []) if unit not in known)
