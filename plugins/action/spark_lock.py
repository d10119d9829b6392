"""Take the lock of a Spark for this run of ansible-playbook, or give it back.

A shim over vllm_spark.lifecycle.operator_lock.
"""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import operator_lock
from vllm_spark.lifecycle.operator_lock import LockHolder, OperatorRun

display = Display()


class ActionModule(ActionBase):
    """Args: state (taken or given), folder, verb, break_lock. Returns `taken`: whether this run holds the Spark now."""

    _supports_check_mode = False

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        self._vars, given = task_vars or {}, self._task.args
        # A task runs in a child of the run's main process.
        mine, host = operator_lock.this_run(os.getppid()), self._vars["inventory_hostname"]
        if given["state"] == "given":
            found = self._ask("given", mine.holder(""))
            if found["holder"] and not found["done"]:
                display.display(f"{host}  {operator_lock.lost_message(LockHolder.from_json(found['holder']))}")
            return {"changed": False, "taken": False}
        found = self._ask("taken", mine.holder(given["verb"]))
        if not found["done"]:
            self._take_over(host, mine, LockHolder.from_json(found["holder"]))
        return {"changed": False, "taken": True}

    def _take_over(self, host: str, mine: OperatorRun, held: LockHolder) -> None:
        """Take the lock of a run that has ended, or as the operator wants it; of that run only, not of the next."""
        alive = operator_lock.lives_here(held, mine)
        if alive is False or self._task.args["break_lock"]:
            found = self._ask("taken", mine.holder(self._task.args["verb"]), held.run)
            if found["done"]:
                display.display(f"{host}  {operator_lock.take_over_message(held, alive)}")
                return
            held = LockHolder.from_json(found["holder"])
            alive = operator_lock.lives_here(held, mine)
        raise AnsibleActionFail(str(RefusedError([operator_lock.refusal(host, held, alive)])))

    def _ask(self, state: str, holder: dict[str, Any], over: str | None = None) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="spark_lock",
            module_args={"state": state, "holder": holder, "over": over, "folder": self._task.args["folder"]},
            task_vars=self._vars,
        )
        if "done" not in result:
            raise AnsibleActionFail(result.get("msg", "the box did not answer"), result=result)
        return result
