"""Deployments of a pull: the active ones, or those that the operator names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_spark.core.refusal import register
from vllm_spark.inventory import deployment, spec
from vllm_spark.inventory.spec import Inventory, Spec

PULL_UNKNOWN = register("pull-unknown", runbook="inventory-refused")

EVERYTHING = "all"


def of_host(inventory: Inventory, host: str, named: Sequence[str] = ()) -> list[Spec]:
    """Return the specs of one host: of its active deployments, or of each of `named` (or `all`) as if it were active.

    Raises RefusedError.
    """
    deployments = deployment.parse(inventory.deployments)
    unknown = sorted(set(named) - {placed.name for placed in deployments} - {EVERYTHING})
    if unknown:
        raise PULL_UNKNOWN.error(
            what=f"pull_deployments names {', '.join(unknown)}",
            expected=f"{EVERYTHING}, or some of: {', '.join(placed.name for placed in deployments)}",
            fix="correct -e pull_deployments=NAME[,NAME].",
        )
    if not named:
        active = [placed.name for placed in deployment.active_of_host(deployments, host)]
        turns = [spec.resolve(replace(inventory, chosen=(name,)), host) for name in active or [""]]
        return [entry for entry in turns if entry]
    own = [placed.name for placed in deployment.of_host(deployments, host)]
    names = own if EVERYTHING in named else [name for name in own if name in named]
    resolved = [spec.resolve(_only(inventory, name), host) for name in names]
    return [entry for entry in resolved if entry]


def _only(inventory: Inventory, name: str) -> Inventory:
    """Return the inventory with only this deployment active."""
    assert isinstance(inventory.deployments, Sequence)  # noqa: S101  parsed before; for the type checker
    return replace(
        inventory, deployments=[{**entry, "active": entry["name"] == name} for entry in inventory.deployments]
    )
