"""Start the sampler of a rank beside the head, before the head measures."""

from __future__ import annotations

from typing import Any

from vllm_spark.bench import deployment_run
from vllm_spark.bench.deployment_run import DeploymentRun
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark_ansible.job import JobAction


class ActionModule(JobAction):
    """Arguments: spec and plan of this host; profile and hours, as for vllm_bench_plan; cells. Returns at once."""

    quiet = True

    def act(self) -> dict[str, Any]:
        plan = self.args["plan"]
        run = DeploymentRun(
            Spec.from_json(self.args["spec"]),
            GateRequest.from_json(plan["gates"]),
            plan["env_path"],
            deployment_run.profile(self.args["profile"], float(self.args.get("hours") or 0)),
        )
        request = run.rank_request(self.args["cells"])
        started = self.job(deployment_run.JOB, action="start", **deployment_run.job("rank_job", request))
        if started.get("failed"):
            raise RefusedError([deployment_run.sampler_failure(self.host, started.get("msg", ""))])
        return {"changed": True}
