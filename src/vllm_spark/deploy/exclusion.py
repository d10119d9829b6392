"""What the plan puts on a Spark so that one deployment can take another's place there: the exclusion in systemd, the
program vllm-switch, and what a start needs of memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vllm_spark.core import paths
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import memory

DROP_IN = "exclude.conf"


def switch_program() -> str:
    """The text of vllm-switch."""
    return (paths.NODE / "switch.py").read_text(encoding="utf-8")


def drop_in_folder(name: str) -> str:
    """Where systemd reads what is added to one deployment's unit."""
    return f"/etc/systemd/system/vllm@{name}.service.d"


def excluded_units(spec: Spec, facts: Mapping[str, Any]) -> list[str]:
    """The deployments that may not run beside this one on its Spark: those that the inventory names for it, and those
    that lie there without it."""
    return sorted({*spec.inactive, *facts.get("placed", [])} - {spec.deployment.name})


def drop_in_text(name: str, excluded: Collection[str]) -> str:
    """The drop-in of one deployment. Conflicts= holds both ways, so one of two that has it is enough.

    systemd stops before it starts only what is ordered, and a stop comes first whatever the direction
    (systemd.unit(5), Conflicts= and Before=). One direction, by name: two that are each after the other are a cycle.
    """
    lines = ["# Written by vllm-spark. This Spark's memory holds one model: a start of one stops the others first."]
    lines += ["[Unit]", _listed("Conflicts", excluded)]
    lines += [_listed("After", [other for other in excluded if other < name])]
    lines += [_listed("Before", [other for other in excluded if other > name])]
    return "\n".join(line for line in lines if line) + "\n"


def _listed(key: str, names: Collection[str]) -> str:
    return f"{key}={' '.join(f'vllm@{name}.service' for name in sorted(names))}" if names else ""


def memory_requirement(recipe: Mapping[str, Any]) -> dict[str, float | int]:
    """What must be available before a start, in terms that hold on a Spark of any size: the larger of `share` of its
    memory and `bytes`, and `floor_bytes` for the box (memory.needed_bytes, memory.floor_bytes)."""
    budget = recipe["memory"]
    return {
        "share": 0 if "kv_cache_bytes" in budget else budget.get("utilization", 0),
        "bytes": memory.needed_bytes(recipe, total_bytes=0),
        "floor_bytes": memory.floor_bytes(recipe),
    }
