"""Measure the fabric of several Sparks on all of them at the same time. vllm_spark.inventory.link_rate judges."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import link_rate
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "least_gbps": {"type": "float", "required": True},  # The least rate of a rail in Gbit/s.
        "plan": {"type": "dict"},  # The plan of vllm_fabric_link or of vllm_topology. It takes precedence over `hosts`.
        # The hosts of a deployment whose facts spark_precheck has read. Of one host nothing is measured.
        "hosts": {"type": "list", "elements": "str"},
    }

    def act(self) -> dict[str, Any]:
        hosts, plan = list(self.args.get("hosts") or []), self.args.get("plan")
        if plan:
            ends = link_rate.of_plan(plan)
        elif len(hosts) > 1:
            facts = self.results(results.FACTS, hosts)
            ends = link_rate.of_facts(self.host, {host: facts[host]["fabric"] for host in hosts})
        else:
            return {"lines": []}
        measured = self.execute("spark_link_rate", {"rails": ends}, "received")
        lines, refusals, rates = link_rate.judge(self.host, ends, measured["received"], float(self.args["least_gbps"]))
        self.say(*lines)
        if refusals:
            raise RefusedError(refusals)
        return {"lines": lines, "rates": rates}
