"""Write the bundle for a site without internet if it is not finished, otherwise check it.

vllm_spark.transfer.bundle does the work in a process of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ansible.module_utils.parsing.convert_bool import boolean

from vllm_spark.core import own_process
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "hosts": {"type": "list", "elements": "str", "required": True},  # The hosts of the pull.
        "folder": {"type": "str", "required": True},  # The folder of the bundle on the controller.
        "registries": {"type": "dict", "required": True},  # A registry to the URL that is asked in its place.
        "token": {"type": "str", "required": True},  # The token of the hub. Empty for none.
        "environment": {"type": "dict", "required": True},  # Variables for the hub's library.
        "signers": {"type": "str", "required": True},  # The file of accepted signers.
        "key": {"type": "str"},  # The key that signs. Without it, the operator's own.
        # Whether a bundle without a signature is accepted. Without this argument it is not.
        "unsigned": {"type": "bool"},
    }

    def act(self) -> dict[str, Any]:
        pulled = self.results(results.PULLED_SPECS, self.args["hosts"])
        token = {"HF_TOKEN": self.args["token"]} if self.args["token"] else {}
        request = {
            "folder": self.args["folder"],
            "specs": [spec for specs in pulled.values() for spec in specs],
            "registries": dict(self.args["registries"]),
            "environment": token | dict(self.args["environment"]),
            "signers": self.args["signers"],
            "key": self.args.get("key", ""),
            "unsigned": boolean(self.args.get("unsigned", False)),
            "check_mode": self.check_mode,
        }
        done: dict[str, Any] = own_process.run("vllm_spark.transfer.bundle", request, self.show)
        return done
