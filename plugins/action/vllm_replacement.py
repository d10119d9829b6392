"""What a deploy does to the unit of this host, and what it replaces. vllm_spark.deploy.decision and
vllm_spark.lifecycle.replacement decide."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.deploy import decision
from vllm_spark.lifecycle import replacement
from vllm_spark.lifecycle.replacement import HostPlan
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `unit` decides what happens to the unit, `decide` what it replaces. `result` judges the change. `report` fails
        # with what came back where.
        "phase": {"type": "str", "choices": ["unit", "decide", "result", "report"], "required": True},
        "plan": {"type": "dict"},  # The plan of this host. `unit` needs it.
        # The files that vllm_files has changed, or would change in check mode. `unit` needs them.
        "changed_paths": {"type": "list", "elements": "str"},
        "deployments": {"type": "raw"},  # The deployments of the inventory. `decide` needs them.
        "decision": {"type": "dict"},  # The result of `unit`. `decide` needs it.
        "replacement": {"type": "dict"},  # The result of `decide`. `result` needs it.
        "missed": {"type": "str"},  # Why the new server is not kept. `report` needs it.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        phase = self.args["phase"]
        if phase == "unit":
            return decision.decide(self.args["plan"], self.args["changed_paths"], check_mode=self.check_mode).to_json()
        spec = self.result(results.SPEC) or {}
        hosts: list[str] = spec["deployment"]["hosts"]
        if phase == "decide":
            return self._decide(hosts)
        if phase == "report":
            self.fail(replacement.report(spec["deployment"]["name"], self.args["missed"], self._outcomes(hosts)))
        missed = replacement.failure(self.results(results.REPLACED, hosts, default={}))
        return {**self.args["replacement"], "ok": not missed, "missed": missed}

    def _outcomes(self, hosts: list[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Return by host what back.yml of vllm_switch has registered."""
        restored = self.results(results.SWITCH_RESTORED, hosts, default={})
        again = self.results(results.SWITCH_AGAIN, hosts, default={})
        return {host: (restored[host], again[host]) for host in hosts}

    def _decide(self, hosts: list[str]) -> dict[str, Any]:
        plans, facts = self.results(results.PLAN, hosts), self.results(results.FACTS, hosts)
        of_hosts = {host: HostPlan(plans[host], facts[host]["running_units"]) for host in hosts}
        inventory, decided = self.args["deployments"], self.args["decision"]
        own = replacement.of_host(of_hosts, self.host, decided, inventory, self.play_hosts_all)
        left = replacement.if_interrupted(of_hosts, self.host, decided, own)
        return {**own.to_json(), **({"if_interrupted": left.to_json()} if left else {})}
