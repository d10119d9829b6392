"""Watch an image arrive: the async job of docker_image_pull, with what it has put on the disk so far."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark import pulling

display = Display()

LOOK_EVERY_S = 5.0


class ActionModule(ActionBase):
    """Args: job (an async job id), image, timeout_s."""

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        started, before = time.monotonic(), self._disk_used()
        while True:
            job = self._execute_module(
                module_name="ansible.builtin.async_status",
                module_args={"jid": args["job"]},
                task_vars=task_vars or {},
            )
            if job.get("finished"):
                break
            elapsed_s = time.monotonic() - started
            arrived = self._disk_used() - before
            display.display(f"{self._host(task_vars)}  {pulling.headline(arrived, elapsed_s, args['timeout_s'])}")
            time.sleep(LOOK_EVERY_S)
        if job.get("failed"):
            raise AnsibleActionFail(pulling.failure(args["image"], job.get("msg", "")))
        return {"changed": job.get("changed", False), "seconds": round(time.monotonic() - started, 1)}

    def _host(self, task_vars: dict[str, Any] | None) -> str:
        return (task_vars or {}).get("inventory_hostname", "")

    def _disk_used(self) -> int:
        """Bytes in use where Docker keeps its layers."""
        shown = self._low_level_execute_command("df --block-size=1 --output=used /var/lib/docker")
        return int(shown["stdout"].split()[-1]) if shown["rc"] == 0 else 0
