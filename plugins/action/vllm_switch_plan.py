"""Choose the deployments that a switch concerns, and decide what it stops on this host.

vllm_spark.lifecycle.switch decides.
"""

from __future__ import annotations

from typing import Any

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import switch
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: phase.

    `choose` takes deployments, to and limit. It returns the deployments of this run and the hosts of the new one.
    `order` takes these deployments and limit, and needs the plans of spark_precheck on every host of the play. It
    returns names without `vllm@`: `stop`, `running` (those of `stop` that run), `others` (that run and stay) and `old`
    (the one that returns if the switch fails, or nothing); and `involved`: the switch concerns
    this host; `starts`: the new deployment starts on it.
    """

    def act(self) -> dict[str, Any]:
        return self._choose() if self.args["phase"] == "choose" else self._order()

    def _choose(self) -> dict[str, Any]:
        self.quiet = True
        deployments = switch.choose(self.args["deployments"], self.args["to"], self.args["limit"])
        return {
            "deployments": deployments,
            "hosts": next(entry["hosts"] for entry in deployments if entry["active"]),
        }

    def _order(self) -> dict[str, Any]:
        plans = self.registered("spark_precheck_planned", "plan", self.play_hosts)
        if refusals := list(switch.refusals(self.args["deployments"], plans, self.args["limit"])):
            raise RefusedError(refusals)
        stop = plans[self.host]["stop_units"]
        running = self.hostvars[self.host]["spark_precheck_box"]["facts"]["running_units"]
        return {
            "involved": bool(stop) or not plans[self.host]["idle"],
            "starts": not plans[self.host]["idle"],
            "stop": [_name(unit) for unit in stop],
            "running": [_name(unit) for unit in stop if unit in running],
            "others": [_name(unit) for unit in running if unit not in stop],
            "old": _name(switch.before(stop, running)),
        }


def _name(unit: str) -> str:
    return unit.removeprefix("vllm@").removesuffix(".service")
