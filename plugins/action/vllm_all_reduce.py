"""Time the all-reduces between the ranks of a server, on all its hosts at the same time.

vllm_spark.deploy.all_reduce has the container, vllm_spark.inventory.link_timing what follows.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import all_reduce, ranks
from vllm_spark.inventory import link_timing
from vllm_spark.inventory.intent import ranks_of
from vllm_spark_ansible import resolved, results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "folder": {"type": "str", "required": True},  # The folder of the timings on the controller.
    }

    def act(self) -> dict[str, Any]:
        specs = ranks_of(resolved.intents_of(self, self.host))
        if len(specs) < 2:  # noqa: PLR2004  one Spark has nobody to reduce with
            return {}
        facts = self.results(results.FABRIC_FACTS, specs)
        if refusals := list(all_reduce.hindrances(specs, facts)):
            raise RefusedError(refusals)
        own = ranks.join(specs, facts)[self.host]
        done = self.execute("ansible.builtin.command", {"argv": all_reduce.argv(own)}, "stdout")
        if done.get("rc"):
            raise RefusedError([all_reduce.failure(self.host, done)])
        day = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        timing = link_timing.of_output(done["stdout"], list(specs), own.image, day)
        if own.rank or timing is None:
            return {}
        file = link_timing.write(Path(self.args["folder"]), timing)
        self.say(timing.line(), f"plan reads it: {file}")
        return {"timing": str(file)}
