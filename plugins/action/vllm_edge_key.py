"""Add, revoke or list the keys of an edge, and print the persons that have one."""

from __future__ import annotations

from typing import Any

from vllm_spark.core.refusal import RefusedError
from vllm_spark.edge import persons
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: those of the module."""

    def act(self) -> dict[str, Any]:
        listed = self.args["state"] == "listed"
        if not listed and (refusal := persons.name_refusal(self.args["name"])):
            raise RefusedError([refusal])
        done = self.execute("vllm_edge_key", self.args, "names")
        may = set(done.get("may_switch", ()))
        names = ", ".join(f"{name} (may switch)" if name in may else name for name in done["names"]) or "nobody"
        self.say(f"keys: {names}" if done["edge"] else "has no edge")
        return done
