"""Read the toolkit's objects on a host. An error of the access to the host is explained, as for every action."""

from __future__ import annotations

from typing import Any

from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of the module."""

    def act(self) -> dict[str, Any]:
        return self.execute("vllm_holdings", self.args, "holdings")
