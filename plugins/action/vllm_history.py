"""Record judged gates in the history of the host, read the history, or print that of all hosts.

The module reads and writes the file. vllm_spark.lifecycle.history defines an entry and the table.
"""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.bench import verdict
from vllm_spark.lifecycle import history
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "phase": {"type": "str", "choices": ["read", "record", "table"], "required": True},  # What to do.
        "deployment": {"type": "str"},  # The deployment; empty to read the histories of all.
        # The number of entries of each deployment that `read` returns, and of rows that `table` prints.
        "last": {"type": "int"},
        "folder": {"type": "str"},  # The folder of the deployment on the host. `record` needs it.
        "verb": {"type": "str"},  # The verb whose gates were judged. `record` needs it.
        "judged": {"type": "dict"},  # The result of vllm_verify. `record` needs it.
        "json_file": {"type": "str"},  # The file for the JSON of `table`. Empty for none.
    }

    def act(self) -> dict[str, Any]:
        args = dict(self.args)
        phase = args.pop("phase")
        if phase == "table":
            return self._table(args["json_file"], int(args["last"]))
        if phase == "record":
            operator = f"{getpass.getuser()}@{socket.gethostname()}"
            plan = self.having(results.PLAN, [self.host]).get(self.host, {})
            args["entry"] = history.entry(args.pop("verb"), operator, args.pop("judged"), plan)
        return self.execute("vllm_history_file", args)

    def _table(self, json_file: str, last: int) -> dict[str, Any]:
        self.quiet = True
        rows = history.rows(self.results(results.HISTORY, self.play_hosts))[-last:]
        if json_file:
            Path(json_file).expanduser().write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        benches = verdict.latest_lines(str(row.get("deployment")) for row in rows)
        self.show("\n".join([history.table(rows), *benches]))
        return {}
