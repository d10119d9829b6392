"""What of the inventory a switch looks at. A shim over vllm_spark.lifecycle.switch."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import switch


class ActionModule(ActionBase):
    """Args: deployments, to, limit. Returns the deployments of this run, and the hosts of the new one."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self._task.args
        try:
            chosen = switch.choose(given["deployments"], given["to"], given["limit"])
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        hosts = next(entry["hosts"] for entry in chosen if entry["active"])
        return {"changed": False, "deployments": chosen, "hosts": hosts, "_ansible_verbose_override": True}
