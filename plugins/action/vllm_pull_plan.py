"""Resolve what a pull brings to this host, plan the transfers, and prove at the end that everything arrived.

vllm_spark.transfer.selection and vllm_spark.transfer.plan decide.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.core import version
from vllm_spark.inventory.spec import Inventory, Spec
from vllm_spark.transfer import plan, selection
from vllm_spark.transfer.site import PullSite, models
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "phase": {"type": "str", "choices": ["resolve", "plan", "prove"], "required": True},  # What to do.
        "host": {"type": "str"},  # This host. `resolve` needs it.
        "deployments": {"type": "raw"},  # The deployments of the inventory, not yet checked. `resolve` needs them.
        # Names of deployments; empty for the active ones. `resolve` needs them.
        "named": {"type": "list", "elements": "str"},
        "sparks": {"type": "list", "elements": "str"},  # The hosts of the group. `resolve` needs them.
        "limit": {"type": "list", "elements": "str"},  # The hosts of the run. `resolve` needs them.
        "recipe_folders": {"type": "list", "elements": "str"},  # Folders that contain recipes. `resolve` needs them.
        "lock_file": {"type": "str"},  # The lock file. `resolve` needs it.
        # The secrets by name. `resolve` needs them; it keeps only which of them are empty.
        "secrets": {"type": "dict"},
        # Ids of known issues that the operator accepts. `resolve` needs them.
        "accepted": {"type": "list", "elements": "str"},
        "everywhere": {"type": "raw"},  # All deployments, if `deployments` has only a part of them.
        "edge": {"type": "raw"},  # The edge of this host, not yet checked.
        "site": {"type": "dict"},  # The folders and the package index of the site. `resolve` needs them.
        # All Sparks of this pull, whose facts and weights were read. `plan` and `prove` need them.
        "hosts": {"type": "list", "elements": "str"},
        "bundled": {"type": "bool"},  # Whether a bundle is the source. Without this argument it is not.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        return self._resolve() if self.args["phase"] == "resolve" else self._transfer()

    def _resolve(self) -> dict[str, Any]:
        inventory = Inventory.from_args(self.args)
        specs = selection.of_host(inventory, self.args["host"], tuple(self.args["named"]))
        return {
            "specs": [spec.to_json() for spec in specs],
            "questions": plan.questions(specs) if specs else {},
            "look": plan.model_state_request(specs) if specs else {},
            "programs": plan.programs(),
        }

    def _transfer(self) -> dict[str, Any]:
        hosts = self.args["hosts"]
        pulled = self.results(results.PULLED_SPECS, hosts)
        site = PullSite(
            specs={host: [Spec.from_json(spec) for spec in specs] for host, specs in pulled.items()},
            model_states=self.results(results.MODEL_STATES, hosts),
            facts=self.results(results.PULL_FACTS, hosts),
            toolkit=version.version(),
            bundled=bool(self.args.get("bundled", False)),
        )
        if self.args["phase"] == "prove":
            plan.verify(site, self.host)
            self.say(*(f"{model} is whole" for model in models(site.specs[self.host])))
            return {"steps": {}}
        steps = plan.steps(site, self.host)
        self.say(*(steps.lines or ["everything is here"]))
        return {"steps": steps.to_json()}
