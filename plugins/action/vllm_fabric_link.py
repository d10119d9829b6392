"""Plan the RoCE link between two Sparks, and judge it after the change. vllm_spark.inventory.netplan decides."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.inventory import netplan
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `check` checks the inventory. `plan` also plans the files. `reached` refuses if the host does not answer after
        # the change. `pinged` prints a line for each subnet and refuses if one does not answer.
        "phase": {"type": "str", "choices": ["check", "plan", "reached", "pinged"], "required": True},
        "host": {"type": "str"},  # This host. Every phase but `pinged` needs it.
        "sparks": {"type": "list", "elements": "str"},  # The hosts of the group. `check` and `plan` need them.
        "limit": {"type": "list", "elements": "str"},  # The hosts of the run. `check` and `plan` need them.
        "fabric": {"type": "dict"},  # The fabric as read on the host. `plan` needs it.
        "netplan": {"type": "dict"},  # The netplan files as read on the host. `plan` needs them.
        "replace": {"type": "bool"},  # Whether files of others are replaced. `plan` needs it.
        "guard_s": {"type": "int"},  # The seconds after which the host restores its files. `reached` needs them.
        "lost": {"type": "str"},  # Why the host does not answer; empty if it does. `reached` needs it.
        "plan": {"type": "dict"},  # The plan that `plan` has returned. `pinged` needs it.
        "pings": {"type": "list", "elements": "dict"},  # The results of the pings. `pinged` needs them.
        "netdevs": {"type": "raw"},  # The network devices after the change. `pinged` needs them.
    }

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
