"""Asks the box through the module of the same name, and notes between which moments of the controller's clock."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Args: those of the module. Adds facts.asked, so that the two clocks can be compared."""

    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        before = time.time()
        result |= self._execute_module(module_name="spark_facts", task_vars=task_vars)
        if "facts" in result:
            result["facts"]["asked"] = {"before": before, "after": time.time()}
        return result
