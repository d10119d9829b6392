"""Plan a host from what is resolved and known of all hosts of its deployment, or refuse with every reason.

vllm_spark.deploy.plan decides.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from vllm_spark.core import version
from vllm_spark.deploy import host_warnings, plan
from vllm_spark.edge import recorder
from vllm_spark.inventory.intent import ranks_of
from vllm_spark.lifecycle import metrics, notify
from vllm_spark_ansible import resolved, results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    # Where the host tells its owner about troubles, not yet checked.
    arguments: ClassVar = {"notification": {"type": "raw"}}

    quiet = True

    def act(self) -> dict[str, Any]:
        intents = resolved.intents_of(self, self.host)
        facts = self.results(results.FACTS, intents)
        # Findings are printed before the refusals, because they often explain them.
        findings = host_warnings.findings(ranks_of(intents), facts, self.host)
        self.say(*host_warnings.lines(findings))
        planned, lines = plan.of_host(intents, facts, self.host, version.version(), plan.Purpose(acts=self.acts))
        self.say(*lines)
        # Messages and figures: the inventory wants them, or the host has their files.
        present, recorded = facts[self.host].get("files", {}), recorder.is_recorded(intents[self.host].edge)
        around = self.args.get("notification") or recorded or notify.removed(present) or metrics.removed([], present)
        return {"plan": planned.to_json(), "around": bool(around), "findings": [asdict(one) for one in findings]}
