"""Wait for an async job that builds an image, and print its progress."""

from __future__ import annotations

import os
import shlex
import time
from typing import Any, ClassVar

from vllm_spark.core.pace import Pace
from vllm_spark.transfer import messages
from vllm_spark_ansible.action import SparkAction

POLL_INTERVAL_S = 2.0
# Enough of a build's log to include the reason of a failed step above pip's own lines.
FAILURE_LINES = 80


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "job": {"type": "str", "required": True},  # The id of the async task.
        "results_file": {"type": "str", "required": True},  # The results_file of the async task.
        "image": {"type": "str", "required": True},  # The image that is built.
        # The time limit of the job, in seconds. The job itself ends then.
        "timeout_s": {"type": "int", "required": True},
        "log": {"type": "str", "required": True},  # The log of the build on the host.
    }

    def act(self) -> dict[str, Any]:
        started, pace = time.monotonic(), Pace(begin_s=0)
        # The job has its own time limit. A job whose status cannot be read has ended.
        while not (job := self._status()).get("finished") and not job.get("failed"):
            elapsed_s = time.monotonic() - started
            if pace.due("", elapsed_s):
                self.say(messages.build_headline(self._log(1), elapsed_s, self.args["timeout_s"]))
            time.sleep(POLL_INTERVAL_S)
        if job.get("failed"):
            self.fail(self._failure(job.get("msg", "")))
        return {"changed": job.get("changed", False), "seconds": round(time.monotonic() - started, 1)}

    def _status(self) -> dict[str, Any]:
        folder = os.path.dirname(self.args["results_file"])
        return self.execute("ansible.builtin.async_status", {"jid": self.args["job"], "_async_dir": folder})

    def _failure(self, detail: str) -> str:
        lines = self._log(FAILURE_LINES).splitlines() or [detail]
        return messages.build_failure(self.args["image"], lines, self.args["log"])

    def _log(self, lines: int) -> str:
        """Return the end of the build's log."""
        return self.shell(f"tail -n {lines} {shlex.quote(self.args['log'])}")
