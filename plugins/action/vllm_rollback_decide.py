"""Decide whether the launch of a host gives way to another one. An adapter to vllm_spark.lifecycle.rollback."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from vllm_spark.lifecycle import rollback


class ActionModule(ActionBase):
    """Args: hosts, those of the deployment. After a deploy also plan and enabled; without them it decides about the
    end of a manual rollback. Returns RollbackDecision and `results`, those of vllm_verify on all hosts."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars, args = task_vars or {}, self._task.args
        known = {host: task_vars["hostvars"][host] for host in args["hosts"]}
        if "plan" in args:
            results = {host: of_host.get("vllm_verify_judged", {}) for host, of_host in known.items()}
            plans = [of_host["spark_precheck_planned"]["plan"] for of_host in known.values()]
            mine = results[task_vars["inventory_hostname"]]
            decision = rollback.decide(args["plan"], mine, plans, results.values(), enabled=args["enabled"])
        else:
            results = {host: of_host["__vllm_rollback_again"] for host, of_host in known.items()}
            decision = rollback.decide_by_hand(results.values())
        return {
            "changed": False,
            **decision.to_json(),
            "results": list(results.values()),
            "_ansible_verbose_override": True,
        }
