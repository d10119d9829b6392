"""Resolve what a pull brings to this host, plan the transfers, and prove at the end that everything arrived.

vllm_spark.transfer.selection and vllm_spark.transfer.plan decide.
"""

from __future__ import annotations

from typing import Any

from vllm_spark.core import version
from vllm_spark.inventory.spec import Inventory, Spec
from vllm_spark.transfer import plan, selection
from vllm_spark.transfer.site import PullSite, models
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """plugins/modules/vllm_pull_plan.py has the arguments and the result."""

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
