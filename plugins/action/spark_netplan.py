"""Run the module of that name, and report a connection that its change has broken as a result."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure

from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of the module. Adds `lost`: why the host does not answer since its change; empty if it does.

    The play has any_errors_fatal, and there Ansible ends the run at an unreachable host, whatever ignore_unreachable
    says (ansible/plugins/strategy/linear.py). Nobody would report that the host restores its files itself.
    """

    def act(self) -> dict[str, Any]:
        try:
            return {**self.execute("spark_netplan", self.args), "lost": ""}
        except AnsibleConnectionFailure as error:
            if self.args["state"] not in ("present", "absent"):
                raise
            return {"changed": True, "confirm": True, "lost": str(error)}
