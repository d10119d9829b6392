"""Name the bundles of a pair together, from what its hosts have registered.

A shim over vllm_spark.doctor.support_bundle.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.doctor import support_bundle

display = Display()


class ActionModule(ActionBase):
    """Args: deployments, as the inventory has them."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        shared = (task_vars or {})["hostvars"]
        asked = {
            host: shared[host].get("vllm_collect_done", {}) for host in (task_vars or {})["ansible_play_hosts_all"]
        }
        done = {host: result for host, result in asked.items() if "bundle" in result}
        lines = list(
            support_bundle.pairs(
                self._task.args["deployments"],
                {host: result["bundle"] for host, result in done.items()},
                {host: result["deployments"] for host, result in done.items()},
            )
        )
        for line in lines:
            display.display(line)
        return {"changed": False, "lines": lines}
