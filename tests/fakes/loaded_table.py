"""The facts of a host that has its firewall table as planned."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from vllm_spark.deploy import firewall
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.node import host_layout

SSH_PORTS = (22,)
RUNS = {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}


def table_facts(intent: HostIntent) -> dict[str, Any]:
    """Return `table` of the facts."""
    files = {
        host_layout.FIREWALL: firewall.table(intent, SSH_PORTS),
        host_layout.FIREWALL_UNIT_FILE: firewall.unit_file(),
    }
    return {
        "program": True,
        "files": {path: [sha256(text.encode()).hexdigest(), "0644"] for path, text in files.items()},
        "unit": RUNS,
        "loaded": True,
        "ssh_ports": list(SSH_PORTS),
    }
