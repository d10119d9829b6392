"""Show what runs where. A shim over vllm_spark.report."""

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark import report

display = Display()


class ActionModule(ActionBase):
    """Args: specs and boxes by host, format (table or json)."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        rows = report.status_rows(self._task.args["specs"], self._task.args["boxes"])
        display.display(json.dumps(rows, indent=2) if self._task.args["format"] == "json" else report.table(rows))
        return {"changed": False, "rows": rows}
