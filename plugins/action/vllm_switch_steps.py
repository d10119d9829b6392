"""The commands of a switch on this host. An adapter to vllm_spark.lifecycle.switch_steps."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_spark.lifecycle import switch_steps


class ActionModule(ActionBase):
    """Args: to, order (of vllm_switch_order), decision (of vllm_decide), drain_s, memory_s. Returns SwitchSteps."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        steps = switch_steps.commands(args["order"], args["decision"], args["to"], args["drain_s"], args["memory_s"])
        return {"changed": False, **steps.to_json(), "_ansible_verbose_override": True}
