"""The facts of a host that has its firewall table as planned."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from vllm_spark.core import host_layout
from vllm_spark.deploy import firewall
from vllm_spark.inventory.front import Front
from vllm_spark.inventory.spec import Spec

SSH_PORTS = (22,)
RUNS = {"ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "no"}


def table_facts(owner: Spec | Front) -> dict[str, Any]:
    """Return `table` of the facts."""
    files = {
        host_layout.FIREWALL: firewall.table(owner, SSH_PORTS),
        host_layout.FIREWALL_UNIT_FILE: firewall.unit_file(),
    }
    return {
        "program": True,
        "files": {path: [sha256(text.encode()).hexdigest(), "0644"] for path, text in files.items()},
        "unit": RUNS,
        "loaded": True,
        "ssh_ports": list(SSH_PORTS),
    }
