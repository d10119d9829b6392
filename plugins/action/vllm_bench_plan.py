"""Plan a measurement of a deployment: its cells, and the changes of the server that they need.

vllm_spark.bench decides.
"""

from __future__ import annotations

import shlex
from typing import Any, ClassVar

from vllm_spark.bench import deployment_run, variants
from vllm_spark.bench.deployment_run import DeploymentRun
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench import evidence_file
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "spec": {"type": "dict", "required": True},  # The spec of this host (vllm_spec).
        "plan": {"type": "dict", "required": True},  # The plan of this host (vllm_plan).
        "profile": {"type": "str", "required": True},  # A profile of the toolkit or the path of one.
        "hours": {"type": "float"},  # The duration of a soak. 0 is that of the profile.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        plan = self.args["plan"]
        spec = Spec.from_json(self.args["spec"])
        run = DeploymentRun(
            spec,
            GateRequest.from_json(plan["gates"]),
            plan["env_path"],
            deployment_run.profile(self.args["profile"], float(self.args.get("hours") or 0)),
        )
        if not plan["settled"]:
            raise RefusedError([deployment_run.not_deployed(spec)])
        planned, left_out = run.variants()
        head = spec.deployment.hosts[0]
        record = run.record()
        starts = [variant for variant in planned if variant.is_start]
        changes = any(variant.server for variant in planned) and not starts
        if self.host == head:
            if changes:
                present = evidence_file.present(self.shell(f"cat {shlex.quote(run.path)}"), record)
                planned = [one for one in planned if not {cell["id"] for cell in one.cells} <= present]
            self._say(run, planned, left_out)
        return {
            "head": head,
            "run": record,
            "variants": [variant.to_json() for variant in planned],
            "as_is": not (changes or starts or self.check_mode),
            "changes": changes and not self.check_mode,
            "starts": [] if self.check_mode else _each(starts, run.profile.rules.most_runs),
            "beside_head": bool(spec.rank) and not self.check_mode,
            "has_evidence": not (starts or self.check_mode),
            # The callback runs the verb once more after Ctrl-C.
            "put_back_after_interruption": bool(changes or starts) and not self.check_mode,
        }

    def _say(self, run: DeploymentRun, planned: list[variants.Variant], left_out: list[Any]) -> None:
        cells = sum(len(variant.cells) for variant in planned)
        restarts = [variants.label(variant.server) for variant in planned if variant.server]
        changes = f"; the server is restarted with {', '.join(restarts)}, and put back" if restarts else ""
        self.say(f"{run.spec.deployment.name}: profile {run.profile.name}, {cells} cells{changes}")
        self.say(*(f"not measured: {entry.cell['id']}: {entry.why}" for entry in left_out))


def _each(starts: list[variants.Variant], runs: int) -> list[dict[str, Any]]:
    """Return the single starts. The first one of a profile is cold, so a warm one finds what it has compiled."""
    return [
        {"cell": cell, "kind": variant.server["start"], "label": f"{variant.server['start']} {number} of {runs}"}
        for variant in starts
        for cell in variant.cells
        for number in range(1, runs + 1)
    ]
