"""The link of a pair: the inventory first, then the box; plan out, or every refusal at once. A shim over
vllm_spark.network.netplan."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_spark.core.refusal import RefusedError
from vllm_spark.network import netplan


class ActionModule(ActionBase):
    """Args: host, sparks, limit; with fabric, netplan and replace, the facts of the box, it also plans."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given, shared = self._task.args, (task_vars or {})["hostvars"]
        fabrics = {host: shared[host].get("vllm_fabric") for host in given["sparks"]}
        try:
            ends = netplan.pair(given["host"], fabrics, given["sparks"], given["limit"])
            if "fabric" not in given:
                return {"changed": False}
            made = netplan.plan(ends, given["fabric"], given["netplan"], replace=given["replace"])
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        return {"changed": False, "plan": made.to_json(), "_ansible_verbose_override": True}
