"""Stage 2 of a pull, on the controller: what this Spark does, or every refusal at once; and at its end, whether all is
proven. A shim over vllm_spark.transfer.plan."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core import version
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark.transfer import plan
from vllm_spark.transfer.site import PullSite, models

display = Display()


class ActionModule(ActionBase):
    """Args: hosts, all that this run pulls to, which have been asked; bundled; proven (judge, plan nothing)."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known, host = (task_vars or {})["hostvars"], (task_vars or {})["inventory_hostname"]
        hosts = self._task.args["hosts"]
        site = PullSite(
            specs={
                name: [Spec.from_json(entry) for entry in known[name]["vllm_pull_wanted"]["specs"]] for name in hosts
            },
            model_states={name: known[name]["vllm_pull_looked"]["looks"] for name in hosts},
            facts={name: known[name]["vllm_pull_box"]["facts"] for name in hosts},
            toolkit=version.version(),
            bundled=bool(self._task.args.get("bundled", False)),
        )
        try:
            if self._task.args.get("proven", False):
                plan.verify(site, host)
                mine = models(site.specs[host])
                return self._said(host, [f"{model} is whole" for model in mine], {})
            made = plan.steps(site, host)
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        return self._said(host, made.lines or ["everything is here"], made.to_json())

    def _said(self, host: str, lines: list[str], steps: dict[str, Any]) -> dict[str, Any]:
        for line in lines:
            display.display(f"{host}  {line}")
        return {"changed": False, "steps": steps, "_ansible_verbose_override": True}
