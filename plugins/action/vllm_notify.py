"""Let a host tell its owner about troubles, and report what it tells. vllm_spark.lifecycle.notify decides."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from vllm_spark.inventory import notify as inventory
from vllm_spark.lifecycle import notify
from vllm_spark.node import host_layout
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.resolved import intent_of


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `install` reads the facts of the host, which are registered as `spark_precheck_box`. Without settings it
        # removes what an earlier run has installed.
        "phase": {"type": "str", "choices": ["install", "report"], "required": True},
        "settings": {"type": "raw"},  # The variable `vllm_notify`, not yet checked. `install` needs it.
        "secrets": {"type": "dict"},  # Secrets by variable name. `install` needs them.
        "test": {"type": "bool"},  # Send a test message from the host. `report` needs it.
    }

    def act(self) -> dict[str, Any]:
        if self.args["phase"] == "install":
            return self._install(self.args["secrets"])
        tests = self.args["test"] and not self.check_mode
        output = self.shell(f"{host_layout.NOTIFY} --{'test' if tests else 'show'}")
        if not output:
            raise notify.absent(self.host)
        self.say(notify.line(json.loads(output), tested=tests))
        return {}

    def _install(self, secrets: dict[str, str]) -> dict[str, Any]:
        checked = inventory.parse(self.args["settings"], {name: bool(value) for name, value in secrets.items()})
        present, will = self.result(results.FACTS).get("files", {}), "will be" if self.acts else "would be"
        if not (checked or (items := notify.removed(present))):
            return {}
        if not checked:
            self.say(f"vllm-notify {will} removed: vllm_notify is not set")
            return self.execute("vllm_remove", {"items": items}, "removed")
        # Its edge, by which it knows whom to ask.
        intent = intent_of(self.host, self.hostvars[self.host])
        settings = inventory.settings(checked, self.host, secrets, intent.edge if intent else None)
        if not (files := notify.placed(settings, present)):
            return {}
        self.say(f"vllm-notify {will} installed: it tells {inventory.target(checked)} about troubles")
        done = self.execute("vllm_files", files, "changed_paths")
        if not self.check_mode:
            timer = {"name": host_layout.NOTIFY_TIMER, "enabled": True, "state": "restarted", "daemon_reload": True}
            self.execute("ansible.builtin.systemd_service", timer, "state")
        return done
