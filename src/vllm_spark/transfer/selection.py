"""Which deployments a pull is for: those that serve, or others by name, whose turn comes later. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.inventory import deployment, spec
from vllm_spark.inventory.spec import Inventory, Spec

PULL_UNKNOWN = register("pull-unknown", runbook="inventory-refused")

EVERYTHING = "all"


def of_host(inventory: Inventory, host: str, named: Sequence[str] = ()) -> list[Spec]:
    """The specs of one Spark: of its active deployment, or of those `named` (or `all`) as if each were the active one.
    Raises RefusedError."""
    everything = deployment.parse(inventory.deployments)
    unknown = sorted(set(named) - {placed.name for placed in everything} - {EVERYTHING})
    if unknown:
        raise RefusedError([_unknown(unknown, [placed.name for placed in everything])])
    if not named:
        found = spec.resolve(inventory, host)
        return [found] if found else []
    mine = [placed.name for placed in deployment.of_host(everything, host)]
    names = mine if EVERYTHING in named else [name for name in mine if name in named]
    found_all = [spec.resolve(_only(inventory, name), host) for name in names]
    return [found for found in found_all if found]


def _only(inventory: Inventory, name: str) -> Inventory:
    """The inventory with this one deployment active."""
    assert isinstance(inventory.deployments, Sequence)  # noqa: S101  it has been parsed; this tells the type checker
    return replace(
        inventory, deployments=[{**entry, "active": entry["name"] == name} for entry in inventory.deployments]
    )


def _unknown(names: Sequence[str], known: Sequence[str]) -> Refusal:
    return PULL_UNKNOWN(
        what=f"pull_deployments names {', '.join(names)}",
        expected=f"{EVERYTHING}, or some of {', '.join(known)}",
        fix="correct -e pull_deployments=NAME[,NAME].",
    )
