"""Write the bundle for a site without internet if it is not finished, otherwise check it.

vllm_spark.transfer.bundle does the work in a process of its own.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from vllm_spark.core import own_process
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """plugins/modules/vllm_pull_bundle.py has the arguments and the result."""

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
