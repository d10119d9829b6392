"""Resolve the images and models that the recipes do not pin, and write the lock file.

vllm_spark.pinning.lock_verb decides and asks the registries and the hub, in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.core import inventory_host, own_process
from vllm_spark.node.state_file import replace_file
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "deployments": {"type": "raw", "required": True},  # The deployments of the inventory, not yet checked.
        "limit": {"type": "list", "elements": "str", "required": True},  # The hosts of the run.
        # Names of recipes. If empty, those of every active deployment within the limit.
        "recipes": {"type": "list", "elements": "str", "required": True},
        "recipe_folders": {"type": "list", "elements": "str", "required": True},  # Folders that contain recipes.
        "lock_file": {"type": "str", "required": True},  # The lock file on the controller.
        # Keys of the lock file whose entries may move, or `all`.
        "accepted": {"type": "list", "elements": "str", "required": True},
        "verify": {"type": "bool", "required": True},  # Whether to check the digests that the recipes pin themselves.
        # Whether to leave out recipes whose pins are all known, and on several hosts the manifests of the models too.
        "open_only": {"type": "bool", "required": True},
        "registries": {"type": "dict", "required": True},  # A registry to the URL that is asked in its place.
        # A registry to the URL of a second one, which must see the same digest of a tag.
        "second_registries": {"type": "dict", "required": True},
        # Variables of the process that asks, if one of the hosts is this machine.
        "hub_environment": {"type": "dict", "required": True},
        "token": {"type": "str", "required": True},  # The token of the hub. Empty for none.
    }

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
