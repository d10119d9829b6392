"""Decide and print what prune or remove deletes from a host. vllm_spark.lifecycle.prune and .remove decide."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import installed, prune, remove
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.results import Json, Step


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "registered": {"type": "str", "required": True},  # The variable with the result of vllm_holdings.
        "remove": {"type": "dict"},  # The fields of the request to remove. Without it, this is a prune.
        "again": {"type": "bool"},  # Whether anything that is left is an error. Without this argument it is not.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        again = self.args.get("again", False)
        # After a failed check, some hosts of the play have no result.
        states = self.having(Step[Json](self.args["registered"], "holdings"), self.play_hosts)
        request = (
            remove.RemoveRequest(**self.args["remove"], preview=self.check_mode) if "remove" in self.args else None
        )
        refusals = [] if again else list(remove.refusals(request, states) if request else prune.refusals(states))
        if refusals:
            raise RefusedError(refusals)
        items, left = remove.plan(states[self.host], request) if request else prune.plan(states[self.host])
        if again:
            if items:
                self.fail(str(remove.remaining_lines(self.host, items)))
            return {"items": []}
        self.say(*installed.format_items(items, left, "would remove" if self.check_mode else "removes"))
        return {"items": [item.to_json() for item in items]}
