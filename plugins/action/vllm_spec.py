"""Resolve what this host runs, from the inventory alone. vllm_spark.inventory.spec decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.deploy import plan
from vllm_spark.inventory import spec, variables
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of spec.Inventory, and host. Returns the spec, None for an idle host, `edge` of an idle
    host that has one, and the questions to spark_facts."""

    def act(self) -> dict[str, Any]:
        self.say(*variables.warnings(self.own_variables(), variables.known()))
        inventory = spec.Inventory.from_args({**self.args, "edges": self.edges()})
        resolved = spec.resolve(inventory, self.args["host"])
        inactive = spec.inactive_units(inventory, self.args["host"])
        if resolved is None:
            alone = spec.front(inventory, self.args["host"])
            questions = plan.idle_questions(inactive, alone)
            return {"spec": None, "questions": questions, **({"edge": alone.to_json()} if alone else {})}
        self.quiet = True
        return {"spec": resolved.to_json(), "questions": plan.questions(resolved)}

    def edges(self) -> dict[str, dict[str, Any]]:
        """Return what the inventory says about the edge of every Spark, if this one is part of a site."""
        own = self.args.get("edge", {})
        if not (isinstance(own, Mapping) and own.get("site")):
            return {}
        return {
            host: {
                "settings": self.hostvars[host].get("vllm_edge", {}),
                "authority": str(self.hostvars[host].get("vllm_edge_authority", "")),
            }
            for host in self.args["sparks"]
        }

    def own_variables(self) -> set[str]:
        """Return the variables of this host that no host before it in the play has, so that each is named once."""
        hosts = self.play_hosts_all
        earlier = hosts[: hosts.index(self.host)] if self.host in hosts else []
        return set(self.task_vars) - {name for host in earlier for name in self.hostvars[host]}
