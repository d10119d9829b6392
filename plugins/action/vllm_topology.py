"""Judge the links of a topology that others have configured. vllm_spark.inventory.topology decides."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.inventory import link_rate, topology
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `judge` judges the links, says once what it accepts, and returns the tests of this host. `rates` names the
        # slowest link once.
        "phase": {"type": "str", "choices": ["judge", "rates"], "required": True},
        "topology": {"type": "dict", "required": True},  # vllm_topology of the inventory.
        "sparks": {"type": "list", "elements": "str", "required": True},  # The hosts of the group.
    }

    def act(self) -> dict[str, Any]:
        linked = [host for host in self.args["sparks"] if self.hostvars[host].get("vllm_fabric")]
        known = topology.parse(self.args["topology"], self.args["sparks"], self.play_hosts_all, linked)
        speaks = self.host == known["sparks"][0]
        if self.args["phase"] == "rates":
            measured = self.results(results.LINK_RATES, known["sparks"])
            if speaks:
                self.say(link_rate.slowest([rate for rates in measured.values() for rate in rates]))
            return {}
        self.quiet = True
        facts = {host: found["fabric"] for host, found in self.results(results.LINK_FACTS, known["sparks"]).items()}
        lines = topology.judge(known, facts)
        self.say(*(lines if speaks else ()))
        return {"plan": topology.link_tests(self.host, known, facts)}
