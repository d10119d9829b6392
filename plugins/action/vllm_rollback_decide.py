"""Decide whether another launch replaces the launch of a host. vllm_spark.lifecycle.rollback decides."""

from __future__ import annotations

from typing import Any

from vllm_spark.lifecycle import rollback
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: hosts, those of the deployment. After a deploy also plan and enabled; without them it decides about
    the end of a manual rollback. Returns RollbackDecision and `results`, those of vllm_verify on all hosts."""

    quiet = True

    def act(self) -> dict[str, Any]:
        args = self.args
        hosts = {host: self.hostvars[host] for host in args["hosts"]}
        if "plan" in args:
            results = {host: variables.get("vllm_verify_judged", {}) for host, variables in hosts.items()}
            plans = [variables["spark_precheck_planned"]["plan"] for variables in hosts.values()]
            own = results[self.host]
            decision = rollback.decide(args["plan"], own, plans, results.values(), enabled=args["enabled"])
        else:
            results = {host: variables["__vllm_rollback_again"] for host, variables in hosts.items()}
            decision = rollback.decide_by_hand(results.values())
        return {**decision.to_json(), "results": list(results.values())}
