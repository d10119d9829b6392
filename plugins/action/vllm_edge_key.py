"""Add, revoke or list the keys of an edge, and print the persons that have one."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

from vllm_spark.core.refusal import RefusedError
from vllm_spark.edge import persons
from vllm_spark.node import edge_key
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # What to do.
        "state": {"type": "str", "choices": ["present", "absent", "listed", "compared"], "required": True},
        "name": {"type": "str"},  # The person.
        # The SHA-256 of the key as 64 hexadecimal digits. The key itself stays on the controller.
        "hash": {"type": "str"},
        "may_switch": {"type": "bool"},  # Whether a request of this key may start a model that is not active.
        # `batch` requests leave a part of the engine to the others.
        "class": {"type": "str", "choices": ["interactive", "batch"]},
        # After so many tokens of a day the key is refused until midnight. 0 sets no quota.
        "tokens_a_day": {"type": "int"},
    }

    def act(self) -> dict[str, Any]:
        if self.args["state"] == "compared":
            found = self.results(results.EDGE_KEYS, self.play_hosts)
            self.show(*persons.different({host: persons.shown(keys) for host, keys in found.items()}))
            self.show(*self._left_out())
            return {}
        listed = self.args["state"] == "listed"
        if not listed and (refusal := persons.name_refusal(self.args["name"])):
            raise RefusedError([refusal])
        done = self.execute("vllm_edge_key_file", self.args, "names")
        entries = sorted(map(edge_key.parse, done["keys"].values()), key=attrgetter("person"))
        names = ", ".join(entry.shown for entry in entries) or "nobody"
        ended = f"; the earlier key of {self.args['name']} has ended" if done.get("replaced") else ""
        self.say(f"keys: {names}{ended}" if done["edge"] else "has no edge")
        return done

    def _left_out(self) -> list[str]:
        """Return a line about the Sparks that a new key has not reached, because -l leaves them out."""
        left = [host for host in self.task_vars["groups"]["sparks"] if host not in self.play_hosts_all]
        if not (left and self.args.get("name")):
            return []
        return [
            f"{', '.join(left)}: not in this run, so an earlier key stays valid there. vllm-spark key list shows it."
        ]
