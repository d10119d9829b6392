"""What a deploy replaces on this host. vllm_spark.lifecycle.replacement decides."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.lifecycle import replacement
from vllm_spark.lifecycle.replacement import HostPlan
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `decide` decides. `result` judges the change. `report` fails with what came back where.
        "phase": {"type": "str", "choices": ["decide", "result", "report"], "required": True},
        "deployments": {"type": "raw"},  # The deployments of the inventory. `decide` needs them.
        "decision": {"type": "dict"},  # The result of vllm_decide. `decide` needs it.
        "replacement": {"type": "dict"},  # The result of `decide`. `result` needs it.
        "missed": {"type": "str"},  # Why the new server is not kept. `report` needs it.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        spec = self.result(results.SPEC) or {}
        hosts: list[str] = spec["deployment"]["hosts"]
        phase = self.args["phase"]
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
        plans = self.results(results.PLAN, hosts)
        facts = self.results(results.FACTS, hosts)
        of_hosts = {host: HostPlan(plans[host], facts[host]["running_units"]) for host in hosts}
        inventory, decision = self.args["deployments"], self.args["decision"]
        own = replacement.of_host(of_hosts, self.host, decision, inventory, self.play_hosts_all)
        left = replacement.if_interrupted(of_hosts, self.host, decision, own)
        return {**own.to_json(), **({"if_interrupted": left.to_json()} if left else {})}
