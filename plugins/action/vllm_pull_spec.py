"""Stage 1 of a pull, on the controller: what belongs on this Spark, and what it is asked. A shim over
vllm_spark.transfer.selection."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import spec
from vllm_spark.transfer import plan, selection


class ActionModule(ActionBase):
    """Args: those of spec.Inventory, host, site and deployments_named. Returns the specs, the questions to spark_facts
    and the look of vllm_weights; none for a Spark that nothing is pulled to."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self._task.args
        inventory = spec.Inventory.from_args(given)
        try:
            found = selection.of_host(inventory, given["host"], tuple(given["named"]))
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        return {
            "changed": False,
            "specs": [entry.to_json() for entry in found],
            "questions": plan.questions(found) if found else {},
            "look": plan.model_state_request(found) if found else {},
            "programs": plan.programs(),
            # Pages of JSON that tell an operator nothing; -vv shows them.
            "_ansible_verbose_override": True,
        }
