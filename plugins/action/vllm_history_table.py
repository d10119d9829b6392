"""Show what ran when, of all hosts of this play. A shim over vllm_spark.lifecycle.history."""

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.lifecycle import history

display = Display()


class ActionModule(ActionBase):
    """Args: json (for programs)."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known = (task_vars or {})["hostvars"]
        found = {host: known[host]["vllm_history_read"]["entries"] for host in (task_vars or {})["ansible_play_hosts"]}
        rows = history.rows(found)
        display.display(json.dumps(rows, indent=2) if self._task.args["json"] else history.table(rows))
        return {"changed": False, "rows": rows, "_ansible_verbose_override": True}
