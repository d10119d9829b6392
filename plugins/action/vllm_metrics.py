"""Let the figures of a host be recorded, or no longer. vllm_spark.lifecycle.metrics decides."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_spark.core import inventory_host
from vllm_spark.lifecycle import metrics
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.resolved import intent_of


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `place` reads the facts of the host, which are registered as `spark_precheck_box`, and places the files before
        # their packages are there. `start` starts the units that `place` has named.
        "phase": {"type": "str", "choices": ["place", "start"], "required": True},
        "units": {"type": "list", "elements": "str"},  # `start` needs them.
    }

    def act(self) -> dict[str, Any]:
        if self.args["phase"] == "start":
            for name in self.args["units"]:
                unit = {"name": name, "enabled": True, "state": "restarted", "daemon_reload": True}
                self.execute("ansible.builtin.systemd_service", unit, "state")
            return {"changed": True}
        intent = intent_of(self.host, self.hostvars[self.host])
        present = self.result(results.FACTS).get("files", {})
        edge, will = intent.edge if intent else None, "will be" if self.acts else "would be"
        wanted = metrics.wanted_files(edge, inventory_host.address(self.host, self.task_vars))
        if items := metrics.removed(wanted, present):
            self.say(f"the figures of this host {will} recorded no longer: vllm_edge.metrics_server has changed")
            self.execute("vllm_remove", {"items": items}, "removed")
        files, units = metrics.placed(wanted, present)
        if not files:
            return {"changed": bool(items), "lacks": [], "units": []}
        # Files without units have no edge.
        server = edge.settings.metrics_server if edge else ""
        self.say(f"the figures of this host {will} recorded by {server}: {', '.join(units)}")
        placed = self.execute("vllm_files", files, "changed_paths")
        return {**placed, "changed": True, "lacks": metrics.lacks(units, present), "units": units}
