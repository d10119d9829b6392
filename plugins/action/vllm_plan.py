"""Plan a host from what is resolved and known of all hosts of its deployment, or refuse with every reason.

vllm_spark.deploy.plan decides.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from vllm_spark.core import version
from vllm_spark.deploy import host_warnings, plan
from vllm_spark.inventory.intent import ranks_of
from vllm_spark_ansible import resolved, results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {}

    quiet = True

    def act(self) -> dict[str, Any]:
        intents = resolved.intents_of(self, self.host)
        facts = self.results(results.FACTS, intents)
        # Findings are printed before the refusals, because they often explain them.
        findings = host_warnings.findings(ranks_of(intents), facts, self.host)
        self.say(*host_warnings.lines(findings))
        purpose = plan.Purpose(acts=self.acts)
        planned, lines = plan.of_host(intents, facts, self.host, version.version(), purpose)
        self.say(*lines)
        return {"plan": planned.to_json(), "findings": [asdict(finding) for finding in findings]}
