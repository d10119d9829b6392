"""Stage 2 on the controller: specs and facts in, plan out, or every refusal at once.

A shim over vllm_spark.deploy.plan.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core import version
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.preflight import host_warnings

display = Display()


class ActionModule(ActionBase):
    """Args: hosts, those of the deployment, none for an idle Spark, all of which spark_precheck has asked."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known, host = (task_vars or {})["hostvars"], (task_vars or {})["inventory_hostname"]
        hosts = self._task.args["hosts"]
        if not hosts:
            idle, said = plan.idle_plan(known[host]["spark_precheck_box"]["facts"])
            return self._planned(host, idle.to_json(), said)
        specs = {name: Spec.from_json(known[name]["spark_precheck_resolved"]["spec"]) for name in hosts}
        facts = {name: known[name]["spark_precheck_box"]["facts"] for name in hosts}
        try:
            # Before what refuses: they often say why.
            found = host_warnings.findings(specs, facts, host)
            self._show(host, host_warnings.lines(found))
            made, said = plan.of_host(specs, facts, host, version.version())
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        return self._planned(host, made.to_json(), said) | {"findings": [asdict(finding) for finding in found]}

    def _planned(self, host: str, made: dict[str, Any], said: list[str]) -> dict[str, Any]:
        self._show(host, said)
        return {"changed": False, "plan": made, "_ansible_verbose_override": True}

    def _show(self, host: str, said: list[str]) -> None:
        for line in said:
            display.display(f"{host}  {line}")
