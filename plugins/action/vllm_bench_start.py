"""Start a deployment and measure the time until its first token, by phase: a job on its head."""

from __future__ import annotations

from typing import Any

from vllm_spark.bench import deployment_run, starts
from vllm_spark.core.refusal import RefusedError
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark_ansible.job import JobAction


class ActionModule(JobAction):
    """Arguments: plan of this host; start, an entry of vllm_bench_plan's `starts`; note, printed if it is not empty.

    A worker starts its unit and measures nothing. Returns `measured`: the cell, seconds, phases and
    memory_gib; empty on a worker.
    """

    quiet = True
    poll_interval_s = 2.0

    def act(self) -> dict[str, Any]:
        plan, wanted = self.args["plan"], self.args["start"]
        gates = GateRequest.from_json(plan["gates"])
        if gates.rank:
            self.execute("ansible.builtin.command", {"argv": ["systemctl", "start", "--no-block", plan["unit"]]})
            return {"changed": True, "measured": {}}
        if note := self.args.get("note"):
            self.say(note)
        result = self._run(gates, plan)
        if not result["ok"]:
            raise RefusedError([deployment_run.job_failure(self.host, result)])
        phases = starts.phases([(at, line) for at, line in result["lines"]], result["seconds"])
        parts = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in phases.items())
        self.say(f"{wanted['label']}: {result['seconds']:.1f} s until the first token ({parts})")
        measured = {name: result.get(name) for name in ("seconds", "memory_gib")}
        return {"changed": True, "measured": {**measured, "cell": wanted["cell"], "phases": phases}}

    def _run(self, gates: GateRequest, plan: dict[str, Any]) -> dict[str, Any]:
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
