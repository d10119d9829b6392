"""Decide what happens to the unit of a host. vllm_spark.deploy.decision decides."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.deploy import decision
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "plan": {"type": "dict", "required": True},  # The plan of this host (vllm_plan).
        # The files that vllm_files has changed, or would change in check mode.
        "changed_paths": {"type": "list", "elements": "str", "required": True},
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        return decision.decide(self.args["plan"], self.args["changed_paths"], check_mode=self.check_mode).to_json()
