"""Decide whether another launch replaces the launch of a host. vllm_spark.lifecycle.rollback decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.lifecycle import rollback
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: hosts, those of the deployment. After a deploy also plan and enabled; without them it decides about
    the end of a manual rollback. Returns RollbackDecision, `judged`, the result of vllm_verify on this host, and
    `results`, those on all hosts."""

    quiet = True

    def act(self) -> dict[str, Any]:
        args = self.args
        hosts = {host: self.hostvars[host] for host in args["hosts"]}
        if "plan" in args:
            results = {host: _result(variables) for host, variables in hosts.items()}
            plans = [variables["spark_precheck_planned"]["plan"] for variables in hosts.values()]
            own = results[self.host]
            decision = rollback.decide(
                args["plan"],
                own,
                plans,
                results.values(),
                enabled=args["enabled"],
                replacement=hosts[self.host]["vllm_server_replacement"],
            )
        else:
            results = {host: variables["__vllm_rollback_again"] for host, variables in hosts.items()}
            decision = rollback.decide_by_hand(results.values())
        return {**decision.to_json(), "judged": results[self.host], "results": list(results.values())}


def _result(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the result of vllm_verify, or the step before it that failed on some host of the deployment."""
    replacement = variables.get("vllm_server_replacement", {})
    if not replacement.get("ok", True):
        return {"holds": False, "missed": replacement["missed"]}
    judged: Mapping[str, Any] = variables.get("vllm_verify_judged", {})
    return judged
