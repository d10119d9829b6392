"""Start a long program on the host, print its progress, and judge its result.

vllm_spark.transfer.jobs has the jobs, the texts of their progress and their refusals.
"""

from __future__ import annotations

import time
from typing import Any

from vllm_spark.core.host_layout import PULL_PROGRAM_DIR
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.pull.job import SERVING
from vllm_spark.transfer import jobs, plan
from vllm_spark_ansible.action import SparkAction

POLL_INTERVAL_S = 1.0
LOG_INTERVAL_S = 5.0


class ActionModule(SparkAction):
    """Arguments: job, request; words of a job that is not a program of the toolkit; token; environment_variables; wait
    (default true; false for a job that serves until it is stopped: the task waits until its port is open); manifests
    of the sender, FOLDER/COMMIT -> sha256, for a request that receives models; pushed, results of the head's tasks, for
    a request that receives a built image; stop (only end the job)."""

    quiet = True

    def act(self) -> dict[str, Any]:
        job = self.args["job"]
        if self.args.get("stop", False):
            return self._job(action="stop")
        if self.check_mode:
            return {"changed": True, "result": {}}
        started = self._start()
        if started.get("failed"):
            raise RefusedError([jobs.failure(job, self.host, {"detail": started.get("msg", "")})])
        serves = not self.args.get("wait", True)
        state = self._watch(serves)
        if not (result := state.get("result")):
            return {"changed": True, "result": {"manifests": state["progress"].get("manifests", {})}}
        self._job(action="stop")
        if serves or not result["ok"]:
            raise RefusedError([jobs.failure(job, self.host, result)])
        if summary := jobs.JOBS[job].summary(result):
            self.say(summary)
        return {"changed": jobs.has_changed_host(job, result), "result": result}

    def _start(self) -> dict[str, Any]:
        return self._job(
            action="start",
            programs=plan.programs(),
            program_dir=PULL_PROGRAM_DIR,
            words=list(self.args.get("words") or jobs.JOBS[self.args["job"]].argv),
            request=self._request(),
            token=self.args.get("token", ""),
            environment_variables=self.args.get("environment_variables", {}),
        )

    def _request(self) -> dict[str, Any]:
        request = dict(self.args["request"])
        if "pushed" in self.args:
            request = jobs.with_digest(request, self.args["pushed"])
        return jobs.with_manifests(request, self.args["manifests"]) if "manifests" in self.args else request

    def _watch(self, serves: bool) -> dict[str, Any]:
        """Return the last state of the job: with its result, or of a job that serves as soon as it does.

        There is no deadline here: the job ends by itself if its connection is dead.
        """
        printed_at, printed = time.monotonic(), ""
        while not (state := self._job(action="watch")).get("result"):
            if state.get("failed"):
                raise RefusedError([jobs.failure(self.args["job"], self.host, {"detail": state.get("msg", "")})])
            progress = state.get("progress", {})
            if serves and progress.get("phase") == SERVING:
                break
            line = jobs.headline(progress)
            if time.monotonic() - printed_at >= LOG_INTERVAL_S and line != printed:
                self.say(line)
                printed_at, printed = time.monotonic(), line
            time.sleep(POLL_INTERVAL_S)
        return state

    def _job(self, **args: object) -> dict[str, Any]:
        return self.execute("vllm_weights", {"job": self.args["job"], **args})
