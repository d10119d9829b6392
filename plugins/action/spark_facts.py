"""Read the facts of the host, and note the controller's clock before and after."""

from __future__ import annotations

import time
from typing import Any

from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of the module, and `unload_s`: the seconds in which Ollama must unload its models before; 0
    leaves them. Adds facts.controller_time: the controller's clock before and after."""

    def act(self) -> dict[str, Any]:
        args, unloaded = dict(self.args), dict[str, Any]()
        if unload_s := args.pop("unload_s", 0):
            unloaded = self.execute("spark_ollama", {"deadline_s": unload_s}, "models")
        before = time.time()
        result = {**self.execute("spark_facts", args), **unloaded}
        if "facts" in result:
            result["facts"]["controller_time"] = {"before": before, "after": time.time()}
        return result
