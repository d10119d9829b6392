"""Choose the launch that the verb rollback restores, and decide after the gates are judged whether a launch stays.

vllm_spark.lifecycle.rollback_target and rollback decide.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.lifecycle import rollback, rollback_target
from vllm_spark.verify import startup
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `choose` chooses the launch that the verb rollback restores, for all hosts of the play at once. `decide`
        # decides after a deploy whether another launch replaces that of the host. `end` decides the same at the end of
        # a manual rollback.
        "phase": {"type": "str", "choices": ["choose", "decide", "end"], "required": True},
        "deployment": {"type": "str"},  # The deployment; empty for the running one. Of `choose`.
        "secrets": {"type": "dict"},  # The secrets of today by name, of which only the names are used. Of `choose`.
        "hosts": {"type": "list", "elements": "str"},  # The hosts of the deployment. Of `decide` and `end`.
        "plan": {"type": "dict"},  # The plan of this host. Of `decide`.
        "enabled": {"type": "bool"},  # Whether the operator allows a rollback. Of `decide`.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        phases = {"choose": self._choose, "decide": self._decide, "end": self._end}
        return phases[self.args["phase"]]()

    def _choose(self) -> dict[str, Any]:
        states = self.results(results.ROLLBACK_HOLDINGS, self.play_hosts)
        secrets = [name for name, value in self.args["secrets"].items() if value]
        targets = rollback_target.targets(states, self.args["deployment"], {self.host: secrets})
        target = targets.get(self.host)
        if target:
            self.say(target.line())
        return {"target": target.to_json() if target else {}, "hosts": list(targets)}

    def _decide(self) -> dict[str, Any]:
        """Decide after a deploy. A step before the gates that failed on some host of the deployment counts as one."""
        hosts = self.args["hosts"]
        plans = self.results(results.PLAN, hosts)
        # A deploy that changes nothing replaces nothing: what is registered is of an earlier turn.
        acts = any(plan["acts"] for plan in plans.values())
        replaced = self.results(results.REPLACEMENT, hosts if acts else [], default={}) or {host: {} for host in hosts}
        judged = self.results(results.JUDGED, hosts, default={})
        ended = {
            host: judged[host] if one.get("ok", True) else {"holds": False, "missed": one["missed"]}
            for host, one in replaced.items()
        }
        how = {"enabled": self.args["enabled"], "replacement": replaced[self.host]}
        decision = rollback.decide(self.args["plan"], ended[self.host], plans.values(), ended.values(), **how)
        return {**self._decided(decision, ended), "stopped": replaced[self.host].get("stopped", [])}

    def _end(self) -> dict[str, Any]:
        """Decide at the end of a manual rollback."""
        ended = self.results(results.ROLLBACK_AGAIN, self.args["hosts"])
        return self._decided(rollback.decide_by_hand(ended.values()), ended)

    def _decided(self, decision: rollback.RollbackDecision, ended: dict[str, results.Json]) -> dict[str, Any]:
        causes = startup.first_causes(ended)
        judged = {host: {**one, "missed": causes[host]} if causes[host] else one for host, one in ended.items()}
        return {**decision.to_json(), "judged": judged[self.host], "results": list(judged.values())}
