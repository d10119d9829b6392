"""Stage 2 on the controller: spec and facts in, plan out, or every refusal at once. A shim over vllm_spark.plan."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark import plan, toolkit
from vllm_spark.refusal import RefusedError
from vllm_spark.spec import Spec

display = Display()


class ActionModule(ActionBase):
    """Returns the plan of one Spark."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        spec, facts = Spec.from_json(self._task.args["spec"]), self._task.args["facts"]
        refusals = list(plan.refusals(spec, facts))
        if refusals:
            raise AnsibleActionFail(str(RefusedError(refusals)))
        made = plan.build(spec, facts, toolkit.version())
        for line in plan.summary(spec, made):
            display.display(f"{spec.host}  {line}")
        return {"changed": False, "plan": made.to_json(), "_ansible_verbose_override": True}
