"""The deployments on this host and their units: files, records, states of systemd. Reads only."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_deployment_state import State, present
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import run
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import (
    history_entries,
    read_record,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_systemd import properties_of

if TYPE_CHECKING:
    from vllm_spark.core.types import JudgedFacts, Record

CONFIG_DIR, HISTORY_DIR = layout.CONFIG_DIR, layout.HISTORY_DIR
UNIT_PROPERTIES = (
    *("ActiveState", "SubState", "UnitFileState", "NRestarts", "Result", "NeedDaemonReload"),
    "ActiveEnterTimestampMonotonic",
    "InvocationID",
)


def enabled_units() -> list[str]:
    """Return the enabled vllm@ units, from the symlinks in .wants folders. They outlive a deleted unit file, and the
    unit starts with a boot as soon as the file is back."""
    return sorted({os.path.basename(link) for link in glob.glob("/etc/systemd/system/*.wants/vllm@*.service")})


def units(names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return (the state of the named units, the names of all running vllm@ units). `active_s`: seconds since the unit
    became active."""
    blocks: list[dict[str, Any]] = [*properties_of(names, ("Id", *UNIT_PROPERTIES))]
    active = "active,activating,deactivating"
    listed = run("systemctl", "list-units", "--plain", "--no-legend", "--state", active, "vllm@*.service")
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    for block in blocks:
        block["active_s"] = max(0.0, now - int(block.pop("ActiveEnterTimestampMonotonic", "") or 0) / 1e6)
    return (
        {block.pop("Id"): block for block in blocks if "Id" in block},
        [line.split()[0] for line in listed.output.splitlines() if line] if listed.status == 0 else [],
    )


def records(paths: Mapping[str, str]) -> tuple[dict[str, Record], dict[str, str], dict[str, float]]:
    """Return (deployed.json by deployment, why it cannot be used by path, modification time of its env file). A deploy
    that ignored a broken record would lose the launch before, so a check refuses it (deploy.checks.record)."""
    result: dict[str, Record] = {}
    broken: dict[str, str] = {}
    env_mtimes: dict[str, float] = {}
    for name, path in paths.items():
        record, fault = read_record(path)
        if record is not None:
            result[name] = record
        elif fault:
            broken[path] = fault
        env = os.path.join(os.path.dirname(path), "env")
        if os.path.isfile(env):
            env_mtimes[name] = os.path.getmtime(env)
    return result, broken, env_mtimes


def judged(name: str, folder: str = HISTORY_DIR) -> JudgedFacts:
    """Return what the history of a deployment says about its launches. A line that was cut off is skipped."""
    entries = history_entries(os.path.join(folder, f"{name}.jsonl"))
    last = entries[-1] if entries else {}
    return {
        "launch": str(last.get("launch", "")),
        "holds": bool(last.get("holds")),
        "held": sorted({str(entry.get("launch", "")) for entry in entries if entry.get("holds")}),
    }


def placed() -> list[str]:
    """Return the deployments with a launch script on this host, whether the inventory has them or not."""
    return sorted(path.split("/")[-2] for path in glob.glob(f"{CONFIG_DIR}/*/launch"))


def states(names: Iterable[str]) -> dict[str, State]:
    """Return what each deployment does."""
    return {name: present(name) for name in names}
