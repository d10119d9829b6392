"""Show what runs where, from what the hosts of this play have registered. A shim over vllm_spark.lifecycle.status."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.core import version
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import operator_lock, status, status_table
from vllm_spark.lifecycle.operator_lock import LockHolder
from vllm_spark.lifecycle.status import HostResult

display = Display()


class ActionModule(ActionBase):
    """Args: json_file, where the document goes as JSON, in check mode, too: it is no change; nowhere if empty."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known = task_vars or {}
        hosts = {host: self._asked(known["hostvars"][host]) for host in known["ansible_play_hosts_all"]}
        found = status.document(hosts, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), version.version())
        if self._task.args["json_file"]:
            text = json.dumps(found, indent=2, sort_keys=True) + "\n"
            Path(self._task.args["json_file"]).expanduser().write_text(text, encoding="utf-8")
        display.display(status_table.table(found))
        return {"changed": False, "hosts": found["hosts"], "_ansible_verbose_override": True}

    def _asked(self, known: Mapping[str, Any]) -> HostResult:
        """What this run knows of one host; a task that failed there has left its message."""
        resolved, box = known.get("spark_precheck_resolved") or {}, known.get("vllm_status_box") or {}
        spec = resolved.get("spec")
        return HostResult(
            spec=Spec.from_json(spec) if spec else None,
            refused="" if "spec" in resolved else str(resolved.get("msg", "")) or "it is refused",
            facts=box.get("facts"),
            problem="" if "facts" in box else self._why(box),
            holder_lives=self._holder_lives(box),
        )

    def _holder_lives(self, box: Mapping[str, Any]) -> bool | None:
        shown = box["facts"]["status"]["lock"] if "facts" in box else None
        if not shown:
            return None
        return operator_lock.lives_here(LockHolder.from_json(shown), operator_lock.this_run(os.getppid()))

    def _why(self, box: Mapping[str, Any]) -> str:
        return " ".join(str(box.get("msg") or "it was not asked").removeprefix("Task failed: ").split())
