"""Report what a deploy would do, whether it can, and the forecast. vllm_spark.deploy.preview decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_spark.core import version
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan, preview
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.resolved import front_of


class ActionModule(SparkAction):
    """Arguments: hosts, those of the deployment, whose facts the role has read, none for an idle Spark; context and
    streams (0: those of the recipe); roofline (the site's constants); recipe_folders. Every rank that a deploy would
    refuse fails."""

    quiet = True

    def act(self) -> dict[str, Any]:
        hosts = self.args["hosts"]
        if not hosts:
            facts = self.hostvars[self.host]["vllm_plan_box"]["facts"]
            lines = plan.idle_plan(facts, front_of(self.hostvars[self.host]))[1]
            self.say(*lines)
            return {"lines": lines}
        resolved = self.registered("spark_precheck_resolved", "spec", hosts)
        specs = {host: Spec.from_json(spec) for host, spec in resolved.items()}
        context = ForecastContext(
            hub_dir=specs[hosts[0]].site.hub_dir,
            constants=preview.constants(self.args["roofline"]),
            catalogue=forecast.catalogue([Path(folder) for folder in self.args["recipe_folders"]]),
        )
        load = ForecastRequest(
            int(self.args["context"]) or None, int(self.args["streams"]) or 1, float(self.args["min_speed"])
        )
        facts = self.registered("vllm_plan_box", "facts", hosts)
        report = preview.PreviewedDeploy(specs, facts, version.version()).on(self.host, load, context)
        self.say(*report.lines)
        if report.refusals:
            raise RefusedError(report.refusals)
        return {"lines": report.lines}
