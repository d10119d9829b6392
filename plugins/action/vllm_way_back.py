"""Which launch a rollback by hand brings back, on all hosts of this play at once.

A shim over vllm_spark.lifecycle.rollback.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import rollback_target

display = Display()


class ActionModule(ActionBase):
    """Args: deployment, empty for the one that runs. Returns this host's way, empty where it has none to go."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known, host = (task_vars or {})["hostvars"], (task_vars or {})["inventory_hostname"]
        boxes = {name: known[name]["vllm_rollback_box"]["holdings"] for name in (task_vars or {})["ansible_play_hosts"]}
        try:
            ways = rollback_target.targets(boxes, self._task.args["deployment"])
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        way = ways.get(host)
        if way:
            display.display(f"{host}  {way.line()}")
        return {
            "changed": False,
            "way": way.to_json() if way else {},
            "hosts": list(ways),
            "_ansible_verbose_override": True,
        }
