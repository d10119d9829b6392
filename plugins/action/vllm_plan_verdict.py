"""Fail the run for the refusals of all deployments, after each of them has its forecast."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {}

    def act(self) -> dict[str, Any]:
        if refused := self.having(results.PLAN_REFUSED, [self.host]).get(self.host):
            # The forecasts have written the refusals into the document.
            self.fail_run(refused, document={"refusals": []})
        return {}
