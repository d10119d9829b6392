"""Start a long program on the host, print its progress, and judge its result.

vllm_spark.transfer.jobs has the jobs, the texts of their progress and their refusals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

from vllm_spark.core.pace import Pace
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.host_layout import PULL_PROGRAM_DIR
from vllm_spark.node.pull.job import SERVING
from vllm_spark.transfer import jobs, plan
from vllm_spark_ansible.job import JobAction


class ActionModule(JobAction):
    arguments: ClassVar = {
        "job": {"type": "str", "required": True},  # The id of the transfer job.
        "request": {"type": "dict"},  # What the job is to do. Needed unless `stop`.
        # The argv of a job that is not a program of the toolkit. Without it, that of the job.
        "argv": {"type": "list", "elements": "str"},
        "token": {"type": "str"},  # The token of the job. Empty for none.
        "environment_variables": {"type": "dict"},  # Variables of the job.
        # Whether to wait for the end, as without this argument. False is for a job that serves until it is stopped; the
        # task waits until its port is open.
        "wait": {"type": "bool"},
        # The manifests of the sender, FOLDER/COMMIT to SHA-256, for a request that receives models.
        "manifests": {"type": "dict"},
        # The results of the head's tasks, for a request that receives a built image.
        "pushed": {"type": "list", "elements": "dict"},
        "stop": {"type": "bool"},  # Whether the job is only ended.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        job = self.args["job"]
        if self.args.get("stop", False):
            return self.job(job, action="stop")
        if self.check_mode:
            return {"changed": True, "result": {}}
        serves = not self.args.get("wait", True)
        state = self._watch(serves)
        if not (result := state.get("result")):
            return {"changed": True, "result": {"manifests": state["progress"].get("manifests", {})}}
        if serves or not result["ok"]:
            raise RefusedError([jobs.failure(job, self.host, result)])
        if summary := jobs.JOBS[job].summary(result):
            self.say(summary)
        return {"changed": jobs.has_changed_host(job, result), "result": result}

    def _watch(self, serves: bool) -> dict[str, Any]:
        """Return the last state of the job: with its result, or of a job that serves as soon as it does."""
        pace, state = Pace(), dict[str, Any]()
        for state in self._states():
            progress = state.get("progress", {})
            if serves and progress.get("phase") == SERVING:
                break
            if not state.get("result") and pace.due(progress.get("phase", ""), time.monotonic()):
                self.say(jobs.headline(progress))
        return state

    def _states(self) -> Iterator[dict[str, Any]]:
        return self.states(
            self.args["job"],
            programs=plan.programs(),
            program_dir=PULL_PROGRAM_DIR,
            argv=list(self.args.get("argv") or jobs.JOBS[self.args["job"]].argv),
            request=self._request(),
            joins=jobs.JOBS[self.args["job"]].joins,
            token=self.args.get("token", ""),
            environment_variables=self.args.get("environment_variables", {}),
        )

    def _request(self) -> dict[str, Any]:
        request = dict(self.args["request"])
        if "pushed" in self.args:
            request = jobs.with_digest(request, self.args["pushed"])
        return jobs.with_manifests(request, self.args["manifests"]) if "manifests" in self.args else request
