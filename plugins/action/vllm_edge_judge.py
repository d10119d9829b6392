"""Judge the edge of a Spark that is the head of no active deployment. vllm_spark.verify.front decides."""

from __future__ import annotations

from typing import Any

from vllm_spark.verify import front
from vllm_spark_ansible.edge_probe import EdgeProbeAction
from vllm_spark_ansible.resolved import edge_owner_of


class ActionModule(EdgeProbeAction):
    """Arguments: those of EdgeProbeAction. Fails with every condition that does not hold."""

    def act(self) -> dict[str, Any]:
        owner = edge_owner_of(self.hostvars[self.host])
        if owner is None:
            return {"holds": True}
        request = front.request(owner)
        verdicts = front.verdicts(request, self.edge_responses(request))
        if missed := [str(verdict) for verdict in verdicts if verdict.ok is False]:
            self.fail("\n".join(missed))
        url = request.client_url(str(self.task_vars.get("ansible_host", self.host)))
        self.say(f"✓ the edge of {url} holds its gate: {', '.join(verdict.id for verdict in verdicts if verdict.ok)}")
        return {"holds": True}
