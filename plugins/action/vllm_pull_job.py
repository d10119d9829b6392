"""Run one job of a pull on the host and report its progress. A shim over vllm_spark.transfer.jobs."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core.host_layout import PULL_PROGRAM_DIR
from vllm_spark.transfer import jobs, plan

display = Display()

LOOK_EVERY_S = 1.0
SAY_EVERY_S = 5.0


class ActionModule(ActionBase):
    """Args: job, request; words of a job that is no program of ours; token; environment_variables; wait (default; false
    for a job that gives until it is stopped); stop (only end it)."""

    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given, host = self._task.args, (task_vars or {})["inventory_hostname"]
        job = given["job"]
        if given.get("stop", False):
            return self._module(task_vars, {"action": "stop", "job": job})
        if self._task.check_mode:
            return {"changed": True, "result": {}}
        started = self._module(
            task_vars,
            {
                "action": "start",
                "job": job,
                "programs": plan.programs(),
                "program_dir": PULL_PROGRAM_DIR,
                "words": list(given.get("words") or jobs.JOBS[job].argv),
                "request": given["request"],
                "token": given.get("token", ""),
                "environment_variables": given.get("environment_variables", {}),
            },
        )
        if started.get("failed"):
            raise AnsibleActionFail(str(jobs.failure(job, host, {"detail": started.get("msg", "")})))
        if not given.get("wait", True):
            return {"changed": True, "result": {}}
        result = self._watch(job, host, task_vars)
        self._module(task_vars, {"action": "stop", "job": job})
        if not result["ok"]:
            raise AnsibleActionFail(str(jobs.failure(job, host, result)))
        if said := jobs.JOBS[job].summary(result):
            display.display(f"{host}  {said}")
        return {"changed": jobs.has_changed_host(job, result), "result": result, "_ansible_verbose_override": True}

    def _watch(self, job: str, host: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Its result. It has no deadline of ours: a slow line is none of its faults, and a dead one ends it."""
        said_at, said = time.monotonic(), ""
        while True:
            looked = self._module(task_vars, {"action": "watch", "job": job})
            if looked.get("result"):
                return dict(looked["result"])
            line = jobs.headline(looked.get("progress", {}))
            if time.monotonic() - said_at >= SAY_EVERY_S and line != said:
                display.display(f"{host}  {line}")
                said_at, said = time.monotonic(), line
            time.sleep(LOOK_EVERY_S)

    def _module(self, task_vars: dict[str, Any] | None, words: dict[str, Any]) -> dict[str, Any]:
        return dict(self._execute_module(module_name="vllm_weights", module_args=words, task_vars=task_vars or {}))
