"""Stage 1 on the controller: what shall run on this Spark, from the inventory alone.

A shim over vllm_spark.inventory.spec.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.inventory import spec


class ActionModule(ActionBase):
    """Returns the spec and the questions that it puts to the box; a host that shall be idle has no spec."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self._task.args
        inventory = spec.Inventory.from_args(given)
        try:
            found = spec.resolve(inventory, given["host"])
            inactive = spec.inactive_units(inventory, given["host"])
        except RefusedError as refused:
            raise AnsibleActionFail(str(refused)) from refused
        if found is None:
            return {"changed": False, "spec": None, "questions": plan.idle_questions(inactive)}
        return {
            "changed": False,
            "spec": found.to_json(),
            "questions": plan.questions(found),
            # Pages of JSON that tell an operator nothing; -vv shows them.
            "_ansible_verbose_override": True,
        }
