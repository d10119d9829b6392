"""The result of a switch on all hosts of the play. vllm_spark.lifecycle.switch_steps judges it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from vllm_spark.lifecycle import switch_steps
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: to, deployments, hosts of the new deployment, return_allowed. Reads the results of the steps from
    every host of the play. Returns SwitchResult."""

    quiet = True

    def act(self) -> dict[str, Any]:
        now = time.time()
        runs = [_run(host, self.hostvars[host], now) for host in self.play_hosts]
        return switch_steps.result(switch_steps.SwitchRequest(**self.args), runs, self.host).to_json()


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
