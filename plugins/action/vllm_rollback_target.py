"""Choose the launch that the verb rollback restores, for all hosts of the play at once.

vllm_spark.lifecycle.rollback decides.
"""

from __future__ import annotations

from typing import Any

from vllm_spark.lifecycle import rollback_target
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: deployment, empty for the running one. Returns `target` of this host, empty if the host does not have
    the deployment, and `hosts`, which have it."""

    quiet = True

    def act(self) -> dict[str, Any]:
        states = self.registered("vllm_rollback_box", "holdings", self.play_hosts)
        targets = rollback_target.targets(states, self.args["deployment"])
        target = targets.get(self.host)
        if target:
            self.say(target.line())
        return {"target": target.to_json() if target else {}, "hosts": list(targets)}
