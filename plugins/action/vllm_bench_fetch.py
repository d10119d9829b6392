"""Write the evidence of a measurement on the controller and print its verdict."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from vllm_spark.bench import deployment_run, evidence, verdict
from vllm_spark.inventory.spec import Spec
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: spec of this host; profile; folder (evidence on the controller). Does nothing on a worker. Returns
    `evidence`, the path; empty on a worker. Refuses a run with cells that have no figures, after it is written."""

    quiet = True

    def act(self) -> dict[str, Any]:
        spec = Spec.from_json(self.args["spec"])
        source = deployment_run.evidence_path(spec, self.args["profile"])
        if spec.rank:
            return {"evidence": ""}
        content = base64.b64decode(self.execute("ansible.builtin.slurp", {"src": source}, "content")["content"])
        path = self._write(f"{Path(source).stem}-{time.strftime('%Y%m%dT%H%M%S')}{evidence.SUFFIX}", content)
        self.execute("ansible.builtin.file", {"path": source, "state": "absent"})
        self.show(*verdict.closing(path))
        deployment_run.require_figures(evidence.read(path))
        return {"changed": True, "evidence": str(path)}

    def _write(self, name: str, content: bytes) -> Path:
        path = Path(self.args["folder"]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path
