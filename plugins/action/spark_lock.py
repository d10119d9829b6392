"""Take the operator lock of a host for this run of ansible-playbook, or release it.

vllm_spark.lifecycle.operator_lock decides and words the messages.
"""

from __future__ import annotations

import os
from typing import Any

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import operator_lock
from vllm_spark.lifecycle.operator_lock import LockHolder, OperatorRun
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: state (taken or given), folder, verb, break_lock. Returns `taken`: this run now holds the lock."""

    _supports_check_mode = False

    def act(self) -> dict[str, Any]:
        # A task runs in a child of the run's main process.
        this_run = operator_lock.this_run(os.getppid())
        if self.args["state"] == "given":
            result = self._lock("given", this_run.holder(""))
            if result["holder"] and not result["done"]:
                self.say(operator_lock.lost_message(LockHolder.from_json(result["holder"])))
            return {"taken": False}
        result = self._lock("taken", this_run.holder(self.args["verb"]))
        if not result["done"]:
            self._take_over(this_run, LockHolder.from_json(result["holder"]))
        return {"taken": True}

    def _take_over(self, this_run: OperatorRun, holder: LockHolder) -> None:
        """Take the lock over if its run has ended or the operator demands it. Applies to that run only: a run that took
        the lock meanwhile keeps it. Raises RefusedError."""
        alive = operator_lock.lives_here(holder, this_run)
        if alive is False or self.args["break_lock"]:
            result = self._lock("taken", this_run.holder(self.args["verb"]), holder.run)
            if result["done"]:
                self.say(operator_lock.take_over_message(holder, alive))
                return
            holder = LockHolder.from_json(result["holder"])
            alive = operator_lock.lives_here(holder, this_run)
        raise RefusedError([operator_lock.refusal(self.host, holder, alive)])

    def _lock(self, state: str, holder: dict[str, Any], over: str | None = None) -> dict[str, Any]:
        args = {"state": state, "holder": holder, "over": over, "folder": self.args["folder"]}
        return self.execute("spark_lock", args, "done")
