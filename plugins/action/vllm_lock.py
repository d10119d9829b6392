"""Resolve the images and models that the recipes do not pin, and write the lock file.

vllm_spark.pinning.lock_verb decides and asks the registries and the hub, in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_spark.core import inventory_host, own_process
from vllm_spark.node.state_file import replace_file
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """plugins/modules/vllm_lock.py has the arguments and the result."""

    _supports_diff = True

    def act(self) -> dict[str, Any]:
        file = Path(self.args["lock_file"])
        # The variables are those of a Spark. A machine that is none has its own.
        on_spark = any(inventory_host.is_local(self.hostvars[host]) for host in self.args["limit"])
        variables = self.args["hub_environment"] if on_spark else {}
        done = own_process.run("vllm_spark.pinning.lock_verb", self.args, self.show, variables)
        before, after, lines = done["before"], done["after"], done["lines"]
        changed = before != after
        if changed and not self.check_mode:
            replace_file(file, after)
        self.show(*lines)
        diff = {"before": before, "after": after, "before_header": str(file), "after_header": str(file)}
        return {"changed": changed, "lines": lines, "diff": diff if changed else []}
