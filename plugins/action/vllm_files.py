"""Place the files of a deployment. An error of the access or of the disk is explained, as for every action."""

from __future__ import annotations

from typing import Any

from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of the module."""

    _supports_diff = True

    def act(self) -> dict[str, Any]:
        return self.execute("vllm_files", self.args, "changed_paths")
