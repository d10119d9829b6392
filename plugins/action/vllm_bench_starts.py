"""Write the evidence of measured starts on the controller and print its verdict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from vllm_spark.bench import evidence, starts, verdict
from vllm_spark.bench.starts import Start
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench import evidence_file
from vllm_spark.node.bench.records import Cell
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: spec of this host; run, the run record; starts, results of vllm_bench_start; folder (evidence on the
    controller). Does nothing on a worker. Returns `evidence`, the path."""

    quiet = True

    def act(self) -> dict[str, Any]:
        spec, run = Spec.from_json(self.args["spec"]), self.args["run"]
        if spec.rank:
            return {"evidence": ""}
        name = f"{spec.deployment.name}-{run['profile']['name']}-{time.strftime('%Y%m%dT%H%M%S')}{evidence.SUFFIX}"
        path = Path(self.args["folder"]) / name
        evidence_file.begin(path, run)
        cells = self._cells()
        for cell, measured in cells:
            evidence_file.append(path, dict(starts.cell_record(cell, measured)))
        seconds = sum(start.seconds for _, measured in cells for start in measured)
        end = {"record": "end", "seconds": round(seconds, 3), "measured": len(cells), "failed": 0}
        evidence_file.append(path, end)
        self.show(*verdict.closing(path))
        return {"changed": True, "evidence": str(path)}

    def _cells(self) -> list[tuple[Cell, list[Start]]]:
        """Return the cells with their starts, in the order of the profile."""
        by_cell: dict[str, tuple[Cell, list[Start]]] = {}
        for one in self.args["starts"]:
            entry = by_cell.setdefault(one["cell"]["id"], (one["cell"], []))
            entry[1].append(Start(one["seconds"], one["phases"], one.get("memory_gib")))
        return list(by_cell.values())
