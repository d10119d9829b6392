"""Watch an image arrive: the async job of docker_image_pull, with what it has put on the disk so far."""

from __future__ import annotations

import os
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark import pulling

display = Display()

LOOK_EVERY_S = 2.0
SAY_EVERY_S = 15.0


class ActionModule(ActionBase):
    """Args: job and results_file (as an async task returns them), image, timeout_s."""

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args, host = self._task.args, (task_vars or {})["inventory_hostname"]
        started, said_at, before = time.monotonic(), float("-inf"), self._disk_used()
        while not (job := self._look(task_vars or {})).get("finished"):
            # The job's own limit ends it; one that cannot even be asked for has ended already.
            if job.get("failed"):
                break
            elapsed_s = time.monotonic() - started
            if elapsed_s - said_at >= SAY_EVERY_S:
                arrived = self._disk_used() - before
                display.display(f"{host}  {pulling.headline(arrived, elapsed_s, args['timeout_s'])}")
                said_at = elapsed_s
            time.sleep(LOOK_EVERY_S)
        if job.get("failed"):
            raise AnsibleActionFail(pulling.failure(args["image"], job.get("msg", "")))
        return {"changed": job.get("changed", False), "seconds": round(time.monotonic() - started, 1)}

    def _look(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """The state of the job, as the module of async_status tells it."""
        return self._execute_module(
            module_name="ansible.builtin.async_status",
            module_args={
                "jid": self._task.args["job"],
                "_async_dir": os.path.dirname(self._task.args["results_file"]),
            },
            task_vars=task_vars,
        )

    def _disk_used(self) -> int:
        """Bytes in use where Docker keeps its layers."""
        shown = self._low_level_execute_command("df --block-size=1 --output=used /var/lib/docker")
        return int(shown["stdout"].split()[-1]) if shown["rc"] == 0 else 0
