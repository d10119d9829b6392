"""What deploy would do, and whether it can: a shim over vllm_spark.deploy.plan and vllm_spark.sizing.forecast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core import version
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.deploy import plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import forecast, roofline
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest

INVENTORY_REFUSED = register("inventory-refused", runbook="inventory-refused")

display = Display()


class ActionModule(ActionBase):
    """Args: hosts, those of the deployment, none for an idle Spark, all of which vllm_plan has asked; context and
    streams (0: as the recipe is); roofline (constants of the site); recipe_folders. Speaks at the head, fails at
    every rank."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known, host = (task_vars or {})["hostvars"], (task_vars or {})["inventory_hostname"]
        hosts = self._task.args["hosts"]
        if not hosts:
            return self._said(host, plan.idle_plan(known[host]["vllm_plan_box"]["facts"])[1])
        specs = {name: Spec.from_json(known[name]["spark_precheck_resolved"]["spec"]) for name in hosts}
        facts = {name: known[name]["vllm_plan_box"]["facts"] for name in hosts}
        head = specs[hosts[0]]
        asked = ForecastRequest(int(self._task.args["context"]) or None, int(self._task.args["streams"]) or 1)
        setting = ForecastContext(
            hub_dir=head.site.hub_dir,
            constants=self._constants(),
            catalogue=forecast.catalogue([Path(folder) for folder in self._task.args["recipe_folders"]]),
        )
        try:
            found = forecast.forecast(head.deployment.name, head.recipe, facts, asked, setting)
        except RefusedError as error:
            raise AnsibleActionFail(str(error)) from error
        refused, would = self._would(specs, facts, host)
        if host == hosts[0]:
            # The head speaks for all; what is wrong with a worker is told there, too.
            others = [reason for name in hosts[1:] for reason in self._would(specs, facts, name)[0]]
            reasons = [
                *refused,
                *(reason for reason in others if reason.id != plan.REFUSED_WITH_HEAD.id),
                *found.refusals,
            ]
            would += forecast.lines(replace(found, refusals=reasons), head.recipe, asked)
        else:
            reasons = list(refused)
        result = self._said(host, would)
        if reasons:
            raise AnsibleActionFail("\n".join(map(str, reasons)))
        return result

    def _constants(self) -> roofline.Constants:
        try:
            return roofline.constants_of(self._task.args["roofline"])
        except (TypeError, ValueError) as error:
            expected = "constants that docs/reference/prediction.md names, and numbers"
            fix = "correct vllm_roofline in the inventory."
            raise AnsibleActionFail(
                str(
                    INVENTORY_REFUSED(
                        what=f"vllm_roofline: {error}",
                        expected=expected,
                        fix=fix,
                    )
                )
            ) from None  # Ansible would say the cause again

    def _would(self, specs: dict[str, Spec], facts: dict[str, Any], host: str) -> tuple[tuple[Refusal, ...], list[str]]:
        """(why deploy would refuse, what it would do); a model that is not here yet is no reason."""
        try:
            return (), plan.of_host(
                specs, facts, host, version.version(), plan.ids_fixed_by_pull(specs[host], facts[host])
            )[1]
        except RefusedError as error:
            return error.refusals, []

    def _said(self, host: str, lines: list[str]) -> dict[str, Any]:
        for line in lines:
            display.display(f"{host}  {line}")
        return {"changed": False, "lines": lines, "_ansible_verbose_override": True}
