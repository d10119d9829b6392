"""Measure cells of a deployment: a job on its head.

The module vllm_weights starts and watches the job. vllm_spark.bench decides what is measured.
"""

from __future__ import annotations

import time
from typing import Any

from vllm_spark.bench import deployment_run, live
from vllm_spark.bench.deployment_run import DeploymentRun
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench.job import JobRequest, ProgressJson
from vllm_spark.node.bench.runner import Progress
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark_ansible.job import JobAction

LOG_INTERVAL_S = 60.0


class ActionModule(JobAction):
    """Arguments: spec and plan of this host; profile, hours and accepted, as for vllm_bench_plan; run, the record that
    it has returned; cells; ends (no other cells follow). Does nothing on another rank than the
    head. Returns `failed_cells`."""

    quiet = True
    poll_interval_s = 2.0

    def act(self) -> dict[str, Any]:
        plan = self.args["plan"]
        gates = GateRequest.from_json(plan["gates"])
        if gates.rank:
            return {"failed_cells": 0}
        run = DeploymentRun(
            Spec.from_json(self.args["spec"]),
            gates,
            plan["env_path"],
            deployment_run.profile(self.args["profile"], float(self.args.get("hours") or 0)),
            tuple(self.args.get("accepted") or ()),
        )
        request = run.request(self.args["run"], self.args["cells"], ends=self.args["ends"])
        result = self._measure(request)
        if not result["ok"]:
            raise RefusedError([deployment_run.job_failure(self.host, result)])
        return {"changed": True, "failed_cells": result["failed"]}

    def _measure(self, request: JobRequest) -> dict[str, Any]:
        """Run the job and print its progress."""
        printed_at, done, result = time.monotonic(), 0, dict[str, Any]()
        for state in self.states(deployment_run.JOB, **deployment_run.job("job", request)):
            done, printed_at = self._show(state.get("progress") or {}, done, printed_at)
            result = state.get("result") or {}
        return result

    def _show(self, state: ProgressJson | dict[str, Any], done: int, printed_at: float) -> tuple[int, float]:
        """Print the cells that have ended since the last call, or after a minute the present one."""
        if not state:
            return done, printed_at
        first = state["done"] - len(state["ended"]) + 1
        news = [(number, cell) for number, cell in enumerate(state["ended"], first) if number > done]
        if news:
            self.say(*(live.cell_line(cell, number, state["cells"]) for number, cell in news))
            return state["done"], time.monotonic()
        if time.monotonic() - printed_at >= LOG_INTERVAL_S:
            names = ("cell", "done", "cells", "run", "rate", "left_s")
            self.say(live.present_line(Progress(**{name: state[name] for name in names})))  # type: ignore[literal-required]
            return done, time.monotonic()
        return done, printed_at
