"""Plan a host from what is resolved and known of all hosts of its deployment, or refuse with every reason.

vllm_spark.deploy.plan decides.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from vllm_spark.core import inventory_host, version
from vllm_spark.core.types import Facts
from vllm_spark.deploy import host_warnings, plan
from vllm_spark.inventory import notify as inventory
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import ranks_of
from vllm_spark.lifecycle import metrics, notify
from vllm_spark_ansible import resolved, results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "notification": {"type": "raw"},  # Where the host tells its owner about troubles, not yet checked.
        "secrets": {"type": "dict"},  # The secrets by name.
    }

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
        around = self._around(intents[self.host].edge, facts[self.host])
        return {"plan": planned.to_json(), "around": around, "findings": [asdict(finding) for finding in findings]}

    def _around(self, edge: Edge | None, facts: Facts) -> bool:
        """Return True if the program of messages, or what records figures, is not as the inventory wants it."""
        secrets = self.args.get("secrets") or {}
        known = {name: bool(value) for name, value in secrets.items()}
        checked = inventory.parse(self.args.get("notification") or {}, known)
        settings = inventory.settings(checked, self.host, secrets, edge) if checked else ""
        wanted = metrics.wanted_files(edge, inventory_host.address(self.host, self.task_vars))
        return notify.differs(settings, facts) or metrics.differs(wanted, facts)
