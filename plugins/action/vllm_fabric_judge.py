"""What a box showed after its link was changed: a line per subnet, or the refusals.

A shim over vllm_spark.network.netplan.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import RefusedError
from vllm_spark.network import netplan

display = Display()


class ActionModule(ActionBase):
    """Args: host, guard_s and lost (why nobody answers, or nothing); or plan, pings and netdevs."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self._task.args
        if "lost" in given:
            refusals = [netplan.lost_refusal(given["host"], given["guard_s"], given["lost"])] if given["lost"] else []
        else:
            lines, refusals = netplan.judge_pings(given["plan"], given["pings"], given["netdevs"])
            for line in lines:
                display.display(f"{given['plan']['host']}  {line}")
        if refusals:
            raise AnsibleActionFail(str(RefusedError(refusals)))
        return {"changed": False}
