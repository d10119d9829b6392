"""Plan the deployment of one rank from the specs and facts of all ranks, or refuse with every reason.

vllm_spark.deploy.plan decides.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vllm_spark.core import version
from vllm_spark.deploy import plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.preflight import host_warnings
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.resolved import front_of


class ActionModule(SparkAction):
    """Arguments: hosts, those of the deployment, whose facts spark_precheck has read; none for an idle Spark."""

    quiet = True

    def act(self) -> dict[str, Any]:
        hosts = self.args["hosts"]
        if not hosts:
            facts = self.hostvars[self.host]["spark_precheck_box"]["facts"]
            idle, lines = plan.idle_plan(facts, front_of(self.hostvars[self.host]), acts=self.acts)
            self.say(*lines)
            return {"plan": idle.to_json()}
        resolved = self.registered("spark_precheck_resolved", "spec", hosts)
        specs = {host: Spec.from_json(spec) for host, spec in resolved.items()}
        facts = self.registered("spark_precheck_box", "facts", hosts)
        # Findings are printed before the refusals, because they often explain them.
        findings = host_warnings.findings(specs, facts, self.host)
        self.say(*host_warnings.lines(findings))
        purpose = plan.Purpose(acts=self.acts)
        planned, lines = plan.of_host(specs, facts, self.host, version.version(), purpose)
        self.say(*lines)
        return {"plan": planned.to_json(), "findings": [asdict(finding) for finding in findings]}
