"""Gather what a box has to say, ask the doctor, write the bundle. A shim over vllm_spark.doctor.support_bundle.

The module's answer holds the texts, so that one round trip brings them and no file of ours lies on the box. It ends
here: neither a registered variable nor a callback has it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core import version
from vllm_spark.core.refusal import RefusedError
from vllm_spark.doctor import command, support_bundle

display = Display()


class ActionModule(ActionBase):
    """Args: report_dir. Returns the bundle's path, the names of the deployments on the box, and the findings."""

    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        host, folder = (task_vars or {})["inventory_hostname"], Path(self._task.args["report_dir"]).resolve()
        try:
            support_bundle.prepare(folder)
            asked = time.time()
            result = self._execute_module(module_name="vllm_collect", module_args={}, task_vars=task_vars)
            if "collected" not in result:
                raise AnsibleActionFail(result.get("msg", "the box did not answer"), result=result)
            collected = support_bundle.unpack(result["collected"])
            found = support_bundle.examine(collected)
            run = support_bundle.CollectRun(host, version.version(), asked, time.time())
            path = support_bundle.write(folder, collected, found, run)
        except (RefusedError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from None
        for line in support_bundle.report_lines(collected, found, run, path):
            display.display(f"{host}  {line}")
        return {
            "changed": False,
            "bundle": str(path),
            "deployments": list(collected.manifest["deployments"]),
            "findings": command.to_json(found.now, found.now_logs)["findings"],
        }
