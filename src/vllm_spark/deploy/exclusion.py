"""Files by which one deployment can replace another on a host: systemd's exclusion, and vllm-switch. Pure."""

from __future__ import annotations

from collections.abc import Collection

from vllm_spark.core import paths
from vllm_spark.core.templates import unchanged
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.host_layout import FIREWALL_TABLE, TURN_PROGRAM

DROP_IN = "exclude.conf"
# The longest wait of a stop for a neighbour that loads (node/take_turn.py), and what the unit has otherwise.
STOP_TIMEOUT_S = 300 + 45


def switch_program() -> str:
    """Return the text of vllm-switch."""
    return (paths.NODE / "switch.py").read_text(encoding="utf-8")


def drop_in_folder(name: str) -> str:
    """Return the drop-in folder of the unit of one deployment."""
    return f"/etc/systemd/system/vllm@{name}.service.d"


def drop_ins(spec: Spec, placed: Collection[str]) -> dict[str, str]:
    """Return the drop-ins that a deploy places, name of a deployment -> text: its own, and on a shared Spark those of
    its neighbours there, because an exclusion works in both directions. `placed`: the deployments on the host."""
    fits = {spec.deployment.name, *spec.beside}
    excluded = sorted({*spec.inactive, *placed} - fits)
    if not spec.beside:
        return {spec.deployment.name: drop_in_text(spec.deployment.name, excluded)} if excluded else {}
    return {
        name: shared_text(name, excluded) for name in sorted(fits) if name == spec.deployment.name or name in placed
    }


def drop_in_text(name: str, excluded: Collection[str]) -> str:
    """Return the drop-in of one deployment. Conflicts= works in both directions, so one of two units is enough.

    systemd stops before it starts only what is ordered, and a stop comes first whatever the direction
    (systemd.unit(5), Conflicts= and Before=). One direction, by name: two that are each after the other are a cycle.
    """
    lines = ["# Written by vllm-spark. This Spark's memory holds one model: a start of one stops the others first."]
    return "\n".join([*lines, *_unit_lines(name, excluded)]) + "\n"


def shared_text(name: str, excluded: Collection[str]) -> str:
    """Return the drop-in of a deployment that shares its Spark: what does not fit beside it, and its stop, which waits
    while a neighbour loads. It leaves the firewall sets of pairs alone, which may be those of a neighbour."""
    lines = ["# Written by vllm-spark. This Spark's memory holds this model beside others, and one loads at a time."]
    lines += _unit_lines(name, excluded) if excluded else []
    lines += ["[Service]", f"ExecStop=-{TURN_PROGRAM} --stop %i", f"TimeoutStopSec={STOP_TIMEOUT_S}", "ExecStopPost="]
    ends = (line for line in unchanged("vllm@.service").splitlines() if line.startswith("ExecStopPost="))
    lines += [line for line in ends if FIREWALL_TABLE not in line]
    return "\n".join(lines) + "\n"


def _unit_lines(name: str, excluded: Collection[str]) -> list[str]:
    lines = ["[Unit]", _listed("Conflicts", excluded)]
    lines += [_listed("After", [other for other in excluded if other < name])]
    lines += [_listed("Before", [other for other in excluded if other > name])]
    return [line for line in lines if line]


def _listed(key: str, names: Collection[str]) -> str:
    return f"{key}={' '.join(f'vllm@{name}.service' for name in sorted(names))}" if names else ""
