"""The commands of a switch on this host. vllm_spark.lifecycle.switch_steps has their order."""

from __future__ import annotations

from typing import Any

from vllm_spark.lifecycle import switch_steps
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: to; order, of vllm_switch_plan; decision, of vllm_decide; drain_s; memory_s. Returns SwitchSteps."""

    quiet = True

    def act(self) -> dict[str, Any]:
        args = self.args
        return switch_steps.commands(
            args["order"], args["decision"], args["to"], args["drain_s"], args["memory_s"]
        ).to_json()
