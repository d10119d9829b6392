"""What a deploy replaces on this host. vllm_spark.lifecycle.replacement decides."""

from __future__ import annotations

import json
from typing import Any

from vllm_spark.lifecycle import replacement
from vllm_spark.lifecycle.replacement import HostPlan
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: phase.

    `decide` takes deployments (vllm_deployments) and decision (of vllm_decide). It reads the plans of all hosts of the
    deployment and returns Replacement. `result` takes replacement and reads the step `change` of these hosts. It
    returns the replacement with `ok` and `missed`. `report` takes missed, and fails with what came back where."""

    quiet = True

    def act(self) -> dict[str, Any]:
        spec = self.hostvars[self.host]["spark_precheck_resolved"]["spec"]
        hosts: list[str] = spec["deployment"]["hosts"]
        phase = self.args["phase"]
        if phase == "decide":
            return self._decide(hosts)
        if phase == "report":
            self.fail(replacement.report(spec["deployment"]["name"], self.args["missed"], self._outcomes(hosts)))
        missed = replacement.failure({host: self._output(host, "__vllm_server_change") for host in hosts})
        return {**self.args["replacement"], "ok": not missed, "missed": missed}

    def _outcomes(self, hosts: list[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Return by host what back.yml of vllm_switch has registered."""
        return {
            host: (
                self.hostvars[host].get("__vllm_switch_restored", {}),
                self.hostvars[host].get("__vllm_switch_again", {}),
            )
            for host in hosts
        }

    def _decide(self, hosts: list[str]) -> dict[str, Any]:
        plans = self.registered("spark_precheck_planned", "plan", hosts)
        facts = self.registered("spark_precheck_box", "facts", hosts)
        of_hosts = {host: HostPlan(plans[host], facts[host]["running_units"]) for host in hosts}
        inventory, decision = self.args["deployments"], self.args["decision"]
        return replacement.of_host(of_hosts, self.host, decision, inventory, self.play_hosts_all).to_json()

    def _output(self, host: str, variable: str) -> dict[str, Any]:
        """Return the JSON object that a step has printed; empty if the host has skipped the step."""
        document: dict[str, Any] = json.loads(self.hostvars[host].get(variable, {}).get("stdout") or "{}")
        return document
