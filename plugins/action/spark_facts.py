"""Read the facts of the host, and note the controller's clock before and after."""

from __future__ import annotations

import time
from typing import Any

from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of the module. Adds facts.controller_time: the controller's clock before and after."""

    def act(self) -> dict[str, Any]:
        before = time.time()
        result = self.execute("spark_facts", self.args)
        if "facts" in result:
            result["facts"]["controller_time"] = {"before": before, "after": time.time()}
        return result
