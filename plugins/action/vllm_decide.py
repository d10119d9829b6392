"""Decide what happens to the unit of a host. vllm_spark.deploy.decision decides."""

from __future__ import annotations

from typing import Any

from vllm_spark.deploy import decision
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """plugins/modules/vllm_decide.py has the arguments and the result."""

    quiet = True

    def act(self) -> dict[str, Any]:
        return decision.decide(self.args["plan"], self.args["changed_paths"], check_mode=self.check_mode).to_json()
