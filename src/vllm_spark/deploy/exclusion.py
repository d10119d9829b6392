"""Files by which one deployment can replace another on a host: systemd's exclusion, and vllm-switch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vllm_spark.core import paths
from vllm_spark.inventory.spec import Spec

DROP_IN = "exclude.conf"


def switch_program() -> str:
    """Return the text of vllm-switch."""
    return (paths.NODE / "switch.py").read_text(encoding="utf-8")


def drop_in_folder(name: str) -> str:
    """Return the drop-in folder of the unit of one deployment."""
    return f"/etc/systemd/system/vllm@{name}.service.d"


def excluded_units(spec: Spec, facts: Mapping[str, Any]) -> list[str]:
    """Return the deployments that must not run beside this one: the inactive ones of the inventory, and those on disk
    that the inventory does not know."""
    return sorted({*spec.inactive, *facts.get("placed", [])} - {spec.deployment.name})


def drop_in_text(name: str, excluded: Collection[str]) -> str:
    """Return the drop-in of one deployment. Conflicts= works in both directions, so one of two units is enough.

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
