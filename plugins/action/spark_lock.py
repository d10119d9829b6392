"""Take the operator lock of a host for this run of ansible-playbook, or release it.

vllm_spark.lifecycle.operator_lock words the messages.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_lock

from vllm_spark.core.refusal import RefusedError
from vllm_spark.lifecycle import operator_lock
from vllm_spark.lifecycle.operator_lock import LockHolder
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `taken` takes the lock, `given` releases it.
        "state": {"type": "str", "choices": ["taken", "given"], "required": True},
        "folder": {"type": "str", "required": True},  # The folder of the lock on the host.
        "verb": {"type": "str"},  # The verb that takes the lock. `state=taken` needs it.
        # Whether to take the lock from a run that still lives or cannot be seen. `state=taken` needs it.
        "break_lock": {"type": "bool"},
    }

    _supports_check_mode = False

    def act(self) -> dict[str, Any]:
        # A task runs in a child of the run's main process.
        mine = spark_lock.this_run(os.getppid())
        if self.args["state"] == "given":
            done, other = self._lock(mine)
            if other and not done:
                self.say(operator_lock.lost_message(LockHolder.from_json(other)))
            return {"taken": False}
        mine["verb"] = self.args["verb"]
        done, before = self._lock(mine)
        alive = spark_lock.lives(before, mine)
        if not done and (alive is False or self.args["break_lock"]):
            # Replaces this lock only: a run that took the lock meanwhile keeps it.
            done, later = self._lock(mine, before.get("run", ""))
            if done:
                self.say(operator_lock.take_over_message(LockHolder.from_json(before), alive))
            before, alive = later, spark_lock.lives(later, mine)
        if not done:
            raise RefusedError([operator_lock.refusal(self.host, LockHolder.from_json(before), alive)])
        return {"taken": True}

    def _lock(self, holder: dict[str, Any], over: str | None = None) -> tuple[bool, dict[str, Any]]:
        args = {"state": self.args["state"], "holder": holder, "over": over, "folder": self.args["folder"]}
        result = self.execute("spark_lock_file", args, "done")
        return result["done"], result["holder"] or {}
