"""Show what runs where, from what the hosts of this play have registered. A shim over vllm_spark.report."""

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark import report

display = Display()


class ActionModule(ActionBase):
    """Args: format (table or json)."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        shared = (task_vars or {})["hostvars"]
        asked = [(host, shared[host]) for host in (task_vars or {})["ansible_play_hosts"]]
        specs = {host: known["spark_precheck_resolved"].get("spec") for host, known in asked}
        boxes = {host: known["vllm_status_box"]["facts"] for host, known in asked}
        rows = report.status_rows(specs, boxes)
        display.display(json.dumps(rows, indent=2) if self._task.args["format"] == "json" else report.table(rows))
        return {"changed": False, "rows": rows}
