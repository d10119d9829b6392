"""Decide what happens to the unit of a host. An adapter to vllm_spark.deploy.decision."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_spark.deploy import decision


class ActionModule(ActionBase):
    """Args: plan; changed_paths of vllm_files. Returns the fields of Decision."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        decided = decision.decide(args["plan"], args["changed_paths"], check_mode=bool(self._task.check_mode))
        return {"changed": False, **decided.to_json(), "_ansible_verbose_override": True}
