"""Watch an image arrive or be built: an async job, with what it has put on the disk or in its log so far."""

from __future__ import annotations

import os
import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.transfer import messages

display = Display()

LOOK_EVERY_S = 2.0
SAY_EVERY_S = 15.0
# Enough of a build's log to hold a step's reason below pip's own words.
FAILURE_LINES = 80


class ActionModule(ActionBase):
    """Args: job and results_file (as an async task returns them), image, timeout_s; log of a build, none of a pull."""

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        started, said_at, before = time.monotonic(), float("-inf"), self._disk_used()
        while not (job := self._look(task_vars or {})).get("finished"):
            # The job's own limit ends it; one that cannot even be asked for has ended already.
            if job.get("failed"):
                break
            elapsed_s = time.monotonic() - started
            if elapsed_s - said_at >= SAY_EVERY_S:
                display.display(f"{host}  {self._headline(before, elapsed_s)}")
                said_at = elapsed_s
            time.sleep(LOOK_EVERY_S)
        if job.get("failed"):
            raise AnsibleActionFail(self._failure(job.get("msg", "")))
        return {"changed": job.get("changed", False), "seconds": round(time.monotonic() - started, 1)}

    def _headline(self, before: int, elapsed_s: float) -> str:
        deadline_s = self._task.args["timeout_s"]
        if "log" in self._task.args:
            return messages.build_headline(self._log(1), elapsed_s, deadline_s)
        return messages.image_headline(self._disk_used() - before, elapsed_s, deadline_s)

    def _failure(self, said: str) -> str:
        args = self._task.args
        if "log" in args:
            return messages.build_failure(args["image"], self._log(FAILURE_LINES).splitlines() or [said], args["log"])
        return messages.image_failure(args["image"], said)

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

    def _log(self, lines: int) -> str:
        """The end of the build's log."""
        shown = self._low_level_execute_command(f"tail -n {lines} {shlex.quote(self._task.args['log'])}")
        return str(shown["stdout"]) if shown["rc"] == 0 else ""

    def _disk_used(self) -> int:
        """Bytes in use where Docker keeps its layers."""
        shown = self._low_level_execute_command("df --block-size=1 --output=used /var/lib/docker")
        return int(shown["stdout"].split()[-1]) if shown["rc"] == 0 else 0
