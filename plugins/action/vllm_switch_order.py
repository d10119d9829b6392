"""What a switch stops on this Spark, and what comes back there if it fails. A shim over vllm_spark.lifecycle.switch."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import switch


class ActionModule(ActionBase):
    """Args: deployments, those of this run; limit. Every host of the play has been asked by spark_precheck.

    Returns names without `vllm@`: `stop`, `running` (what of it runs), `others` (what runs and is left alone) and `old`
    (what returns, or nothing); `involved`: whether this Spark has a part in the switch.
    """

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known, host = (task_vars or {})["hostvars"], (task_vars or {})["inventory_hostname"]
        plans = {
            name: known[name]["spark_precheck_planned"]["plan"] for name in (task_vars or {})["ansible_play_hosts"]
        }
        refusals = list(switch.refusals(self._task.args["deployments"], plans, self._task.args["limit"]))
        if refusals:
            raise AnsibleActionFail(str(RefusedError(refusals)))
        stop = plans[host]["stop_units"]
        running = known[host]["spark_precheck_box"]["facts"]["running_units"]
        return {
            "changed": False,
            "involved": bool(stop) or not plans[host]["idle"],
            "starts": not plans[host]["idle"],
            "stop": [_name(unit) for unit in stop],
            "running": [_name(unit) for unit in stop if unit in running],
            "others": [_name(unit) for unit in running if unit not in stop],
            "old": _name(switch.before(stop, running)),
        }


def _name(unit: str) -> str:
    return unit.removeprefix("vllm@").removesuffix(".service")
