"""What a deploy does so that the figures of a host are recorded. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vllm_spark.core.host_file import File
from vllm_spark.deploy import files
from vllm_spark.edge import recorder
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node import host_layout as layout

# The units that run on every host that has figures, and those of the host that records them -> their package.
UNITS = {
    layout.METRICS_TIMER: "",
    layout.METRICS_EXPORTER: "prometheus-node-exporter",
    layout.METRICS_PROMETHEUS: "prometheus",
    layout.METRICS_ALERTS: "prometheus-alertmanager",
}
# Where a package has its own unit, by which a host is known to have it.
OF_PACKAGE = "/usr/lib/systemd/system/{}.service"


def enabled(unit: str) -> str:
    """Return the link by which a unit starts with the host."""
    return f"{layout.UNIT_DIR}/{'timers' if unit.endswith('.timer') else 'multi-user'}.target.wants/{unit}"


def units(wanted: Sequence[File]) -> list[str]:
    """Return the units to run among these files."""
    return [unit for unit in UNITS if any(file.path == f"{layout.UNIT_DIR}/{unit}" for file in wanted)]


def lacks(run: Sequence[str], present: Mapping[str, Any]) -> list[str]:
    """Return the packages of these units that the host does not have. `present`: path -> a file of the host."""
    return [name for unit in run if (name := UNITS[unit]) and OF_PACKAGE.format(name) not in present]


def wanted_files(edge: Edge | None, address: str) -> list[File]:
    """Return the files that the host shall have."""
    return [*recorder.files(edge, address)] if edge else []


def placed(wanted: Sequence[File], present: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the module vllm_files, empty if the host has everything, and the units to start."""
    run = units(wanted)
    if not wanted or (
        all(enabled(unit) in present for unit in run) and not any(one.differs(present) for one in wanted)
    ):
        return {}, []
    wanted = [*files.metrics_modules(), *wanted]
    folders = [layout.CONFIG_DIR, *files.module_folders(), recorder.PAGE.rpartition("/")[0]]
    return {"folders": folders, "files": [asdict(file) for file in wanted]}, run


def removed(wanted: Sequence[File], present: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the items of the module vllm_remove: what runs here and shall not. The records stay until `remove`."""
    gone = [unit for unit in UNITS if unit not in units(wanted) and enabled(unit) in present]
    return [{"kind": kind, "name": name} for unit in gone for kind, name in (("unit", unit), ("path", enabled(unit)))]
