"""Record judged gates in the history of the host, read the history, or print that of all hosts.

The module reads and writes the file. vllm_spark.lifecycle.history defines an entry and the table.
"""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

from vllm_spark.bench import verdict
from vllm_spark.lifecycle import history
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: phase. `read` takes those of the module, `record` verb and judged (the result of vllm_verify) instead
    of the module's entry. `table` takes json (output for programs) and json_file (its file; empty for none), and reads
    what each host has registered."""

    def act(self) -> dict[str, Any]:
        args = dict(self.args)
        phase = args.pop("phase")
        if phase == "table":
            return self._table(args["json_file"], as_json=args["json"])
        if phase == "record":
            operator = f"{getpass.getuser()}@{socket.gethostname()}"
            args["entry"] = history.entry(args.pop("verb"), operator, args.pop("judged"))
        return self.execute("vllm_history", args)

    def _table(self, json_file: str, *, as_json: bool) -> dict[str, Any]:
        self.quiet = True
        rows = history.rows(self.registered("vllm_history_read", "entries", self.play_hosts))
        text = json.dumps(rows, indent=2)
        if json_file:
            Path(json_file).expanduser().write_text(f"{text}\n", encoding="utf-8")
        benches = verdict.latest_lines(str(row.get("deployment")) for row in rows)
        self.show(text if as_json else "\n".join([history.table(rows), *benches]))
        return {"rows": rows}
