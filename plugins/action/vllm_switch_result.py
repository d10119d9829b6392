"""The result of a switch on all hosts of the play. An adapter to vllm_spark.lifecycle.switch_steps."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from vllm_spark.lifecycle import switch_steps


class ActionModule(ActionBase):
    """Args: to, deployments, hosts of the new deployment, return_allowed. Reads the results of the steps from every
    host of the play. Returns SwitchResult."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars, args = task_vars or {}, self._task.args
        now, hostvars = time.time(), task_vars["hostvars"]
        runs = [_run(host, hostvars[host], now) for host in task_vars["ansible_play_hosts"]]
        result = switch_steps.result(switch_steps.SwitchRequest(**args), runs, task_vars["inventory_hostname"])
        return {"changed": False, **result.to_json(), "_ansible_verbose_override": True}


def _run(host: str, of_host: Mapping[str, Any], now: float) -> switch_steps.HostRun:
    order = of_host["vllm_switch_order"]
    began = float(of_host["__vllm_switch_begun"])
    return {
        "host": host,
        "others": order["others"],
        "stop": order["stop"],
        "old": order["old"],
        "changes": bool(of_host["vllm_switch_steps"]["change"]),
        "drained": _output(of_host["__vllm_switch_drain"]),
        "steps": _output(of_host["__vllm_switch_change"]),
        "judged": of_host.get("vllm_verify_judged", {}),
        "total_s": now - began,
        "judged_s": now - float(of_host.get("__vllm_switch_judging_since", now)),
    }


def _output(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object that a step has printed; empty if the host has skipped the step."""
    document: dict[str, Any] = json.loads(step.get("stdout") or "{}")
    return document
