"""Write down what was judged, or read what ran when. The file is the module's; what an entry says is
vllm_spark.lifecycle.history's."""

from __future__ import annotations

import getpass
import socket
from typing import Any

from ansible.plugins.action import ActionBase

from vllm_spark.lifecycle import history


class ActionModule(ActionBase):
    """Args: those of the module, but for the entry; verb and judged (the result of vllm_verify) in its place where
    something is to be written down."""

    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = dict(self._task.args)
        verb, judged = given.pop("verb", ""), given.pop("judged", {})
        if verb:
            given["entry"] = history.entry(verb, f"{getpass.getuser()}@{socket.gethostname()}", judged)
        result: dict[str, Any] = self._execute_module(
            module_name="vllm_history", module_args=given, task_vars=task_vars or {}
        )
        return result
