"""Plan the RoCE link between two Sparks, and judge it after the change. vllm_spark.network.netplan decides."""

from __future__ import annotations

from typing import Any

from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.network import netplan
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """plugins/modules/vllm_fabric_link.py has the arguments and the result."""

    def act(self) -> dict[str, Any]:
        phase, args = self.args["phase"], self.args
        if phase in ("reached", "pinged"):
            if refusals := self._refusals():
                raise RefusedError(refusals)
            return {}
        fabrics = {host: self.hostvars[host].get("vllm_fabric") for host in args["sparks"]}
        ends = netplan.pair(args["host"], fabrics, args["sparks"], args["limit"])
        if phase == "check":
            return {}
        self.quiet = True
        plan = netplan.plan(ends, args["fabric"], args["netplan"], replace=args["replace"])
        self.say(*(f"note: {line}" for line in plan["notes"]))
        return {"plan": plan}

    def _refusals(self) -> list[Refusal]:
        args = self.args
        if args["phase"] == "reached":
            return [netplan.lost_refusal(args["host"], args["guard_s"], args["lost"])] if args["lost"] else []
        lines, refusals = netplan.judge_pings(args["plan"], args["pings"], args["netdevs"])
        self.say(*lines)
        return refusals
