"""Measure a deployment by jobs: cells on its head, samples of the other ranks, and starts.

The module spark_host_job starts and watches a job. vllm_spark.bench decides what is measured.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from vllm_spark.bench import deployment_run, live, starts
from vllm_spark.bench.deployment_run import DeploymentRun
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench.job import JobRequest, ProgressJson
from vllm_spark.node.bench.runner import Progress
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark_ansible.job import JobAction

LOG_INTERVAL_S = 60.0


class ActionModule(JobAction):
    arguments: ClassVar = {
        # `sample` starts the sampler of a rank beside the head, and returns at once. The sampler must run before the
        # head measures. `cells` measures cells on the head. Another rank measures nothing. `start` starts the
        # deployment and measures the time until its first token, by phase. A worker starts its unit and measures
        # nothing.
        "phase": {"type": "str", "choices": ["sample", "cells", "start"], "required": True},
        "plan": {"type": "dict", "required": True},  # The plan of this host (vllm_plan).
        "spec": {"type": "dict"},  # The spec of this host (vllm_spec). Not of `start`.
        "profile": {"type": "str"},  # A profile of the toolkit or the path of one. Not of `start`.
        "hours": {"type": "float"},  # The duration of a soak. 0 is that of the profile. Not of `start`.
        "cells": {"type": "list", "elements": "dict"},  # The cells that the head measures. Not of `start`.
        # Reasons for which a run counts although it lacks figures. Of `cells`.
        "accepted": {"type": "list", "elements": "str"},
        "run": {"type": "dict"},  # The run record of vllm_bench_plan. Of `cells`.
        "ends": {"type": "bool"},  # Whether no other cells of this run follow. Of `cells`.
        "start": {"type": "dict"},  # An entry of the `starts` of vllm_bench_plan. Of `start`.
        "note": {"type": "str"},  # A line that is printed before the start. Empty for none. Of `start`.
    }

    quiet = True
    poll_interval_s = 2.0

    def act(self) -> dict[str, Any]:
        phases = {"sample": self._sample, "cells": self._cells, "start": self._start}
        return phases[self.args["phase"]]()

    @property
    def gates(self) -> GateRequest:
        return GateRequest.from_json(self.args["plan"]["gates"])

    @property
    def measurement(self) -> DeploymentRun:
        """The measurement that the arguments describe."""
        return DeploymentRun(
            Spec.from_json(self.args["spec"]),
            self.gates,
            self.args["plan"]["env_path"],
            deployment_run.profile(self.args["profile"], float(self.args.get("hours") or 0)),
            tuple(self.args.get("accepted") or ()),
        )

    def _sample(self) -> dict[str, Any]:
        request = self.measurement.rank_request(self.args["cells"])
        started = self.job(deployment_run.JOB, action="start", **deployment_run.job("rank_job", request))
        if started.get("failed"):
            raise RefusedError([deployment_run.sampler_failure(self.host, started.get("msg", ""))])
        return {"changed": True}

    def _cells(self) -> dict[str, Any]:
        if self.gates.rank:
            return {"failed_cells": 0}
        result = self._measure(self.measurement.request(self.args["run"], self.args["cells"], ends=self.args["ends"]))
        if not result["ok"]:
            raise RefusedError([deployment_run.job_failure(self.host, result)])
        return {"changed": True, "failed_cells": result["failed"]}

    def _measure(self, request: JobRequest) -> dict[str, Any]:
        """Run the job and print its progress."""
        printed_at, done, result = time.monotonic(), 0, dict[str, Any]()
        note = ""
        for state in self.states(deployment_run.JOB, **deployment_run.job("job", request)):
            progress = state.get("progress") or {}
            if not note and (note := progress.get("note", "")):
                self.say(note)
            done, printed_at = self._show(progress, done, printed_at)
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

    def _start(self) -> dict[str, Any]:
        plan, wanted, gates = self.args["plan"], self.args["start"], self.gates
        if gates.rank:
            self.execute("ansible.builtin.command", {"argv": ["systemctl", "start", "--no-block", plan["unit"]]})
            return {"changed": True, "measured": {}}
        if note := self.args.get("note"):
            self.say(note)
        result = self._run_start(gates, plan)
        if not result["ok"]:
            raise RefusedError([deployment_run.job_failure(self.host, result)])
        phases = starts.phases([(at, line) for at, line in result["lines"]], result["seconds"])
        parts = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in phases.items())
        self.say(f"{wanted['label']}: {result['seconds']:.1f} s until the first token ({parts})")
        measured = {name: result.get(name) for name in ("seconds", "memory_gib")}
        return {"changed": True, "measured": {**measured, "cell": wanted["cell"], "phases": phases}}

    def _run_start(self, gates: GateRequest, plan: dict[str, Any]) -> dict[str, Any]:
        """Return the result of the job, which has a deadline of its own."""
        request = {
            "unit": plan["unit"],
            "url": gates.host_url,
            "model": gates.served_name,
            "env_path": plan["env_path"],
            "deadline_s": gates.deadline_s,
        }
        *_, last = self.states(deployment_run.JOB, **deployment_run.job("start_job", request))
        return dict(last["result"])
