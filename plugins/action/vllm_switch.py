"""Decide about a switch on a host: the deployments, what stops, the commands, and the result on all hosts of the play.

vllm_spark.lifecycle.switch and switch_steps decide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import switch, switch_steps
from vllm_spark.node.host_layout import deployment_of
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `choose` chooses the deployments that the switch concerns. `order` decides what stops on the host. `steps`
        # chooses the commands of the host. `result` judges the switch on all hosts.
        "phase": {"type": "str", "choices": ["choose", "order", "steps", "result"], "required": True},
        # The deployments of the inventory; for `order` those of `choose`. Not of `steps`.
        "deployments": {"type": "raw"},
        "limit": {"type": "list", "elements": "str"},  # The hosts of the run. Of `choose` and `order`.
        "to": {"type": "str"},  # The deployment that becomes active. Not of `order`.
        "order": {"type": "dict"},  # The result of `order`. Of `steps`.
        "decision": {"type": "dict"},  # The result of vllm_replacement, `phase=unit`. Of `steps`.
        "drain_s": {"type": "int"},  # The most seconds that running requests get. Of `steps`.
        "memory_s": {"type": "int"},  # The most seconds until the memory is free. Of `steps`.
        "hosts": {"type": "list", "elements": "str"},  # The hosts of the new deployment. Of `result`.
        "return_allowed": {"type": "bool"},  # Whether the old deployments return if the switch fails. Of `result`.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        phases = {"choose": self._choose, "order": self._order, "steps": self._steps, "result": self._result}
        return phases[self.args["phase"]]()

    def _choose(self) -> dict[str, Any]:
        deployments = switch.choose(self.args["deployments"], self.args["to"], self.args["limit"])
        return {
            "deployments": deployments,
            "hosts": next(entry["hosts"] for entry in deployments if entry["active"]),
        }

    def _order(self) -> dict[str, Any]:
        self.quiet = False
        plans = self.results(results.PLAN, self.play_hosts)
        if refusals := list(switch.refusals(self.args["deployments"], plans, self.args["limit"])):
            raise RefusedError(refusals)
        stop = plans[self.host]["stop_units"]
        running = self.result(results.FACTS)["running_units"]
        return {
            "involved": bool(stop) or plans[self.host]["has_rank"],
            "starts": plans[self.host]["has_rank"],
            "stop": [deployment_of(unit) for unit in stop],
            "running": [deployment_of(unit) for unit in stop if unit in running],
            "others": [deployment_of(unit) for unit in running if unit not in stop],
            "old": deployment_of(switch.before(stop, running)),
        }

    def _steps(self) -> dict[str, Any]:
        args = self.args
        steps = switch_steps.commands(
            args["order"], args["decision"], args["to"], args["drain_s"], args["memory_s"]
        ).to_json()
        orders = list(self.results(results.SWITCH_ORDER, self.play_hosts).values())
        told = switch_steps.if_interrupted(orders, args["to"], self.play_hosts).to_json()
        return {**steps, **({"if_interrupted": told} if steps["change"] else {})}

    def _result(self) -> dict[str, Any]:
        named = {name: self.args[name] for name in ("to", "deployments", "hosts", "return_allowed")}
        runs = list(self._runs(self.play_hosts, time.time()))
        return switch_steps.result(switch_steps.SwitchRequest(**named), runs, self.host).to_json()

    def _runs(self, hosts: list[str], now: float) -> Iterator[switch_steps.HostRun]:
        """Yield what each host has done until now."""
        orders, changes = self.results(results.SWITCH_ORDER, hosts), self.results(results.SWITCH_CHANGES, hosts)
        drained, steps, judged = (
            self.results(step, hosts, default={})
            for step in (results.SWITCH_DRAINED, results.SWITCH_CHANGED, results.JUDGED)
        )
        begun = self.results(results.SWITCH_BEGUN, hosts)
        judging = self.results(results.SWITCH_JUDGING_SINCE, hosts, default=now)
        for host in hosts:
            yield {
                "host": host,
                "others": orders[host]["others"],
                "stop": orders[host]["stop"],
                "old": orders[host]["old"],
                "changes": bool(changes[host]),
                "drained": drained[host],
                "steps": steps[host],
                "judged": judged[host],
                "total_s": now - float(begun[host]),
                "judged_s": now - float(judging[host]),
            }
