"""Read the files of a measurement, write its evidence on the controller and print its verdict.

The head has the evidence, another rank its samples. Each host has a clock of its own.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.bench import deployment_run, evidence, ranks, starts, verdict
from vllm_spark.bench.ranks import Reading
from vllm_spark.bench.starts import Start
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.bench import evidence_file
from vllm_spark.node.bench.records import Cell
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `read` reads the evidence of the head and the samples of another rank, with the clock of the host. `fetch`
        # merges what all hosts have read. `starts` writes the evidence of measured starts.
        "phase": {"type": "str", "choices": ["read", "fetch", "starts"], "required": True},
        "spec": {"type": "dict", "required": True},  # The spec of this host (vllm_spec).
        "profile": {"type": "str"},  # A profile of the toolkit or the path of one. Not of `starts`.
        "folder": {"type": "str"},  # The folder of the evidence on the controller. Not of `read`.
        # Reasons for which a run counts although it lacks figures. Of `fetch`.
        "accepted": {"type": "list", "elements": "str"},
        "run": {"type": "dict"},  # The run record of vllm_bench_plan. Of `starts`.
        "starts": {"type": "list", "elements": "dict"},  # The `measured` of each start of vllm_bench. Of `starts`.
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        phases = {"read": self._read, "fetch": self._fetch, "starts": self._starts}
        return phases[self.args["phase"]](Spec.from_json(self.args["spec"]))

    def _read(self, spec: Spec) -> dict[str, Any]:
        path = deployment_run.evidence_path(spec, self.args["profile"])
        sent = time.time()
        printed = self.shell(ranks.command(shlex.quote(path)))
        reading = ranks.reading(printed, sent, time.time())
        # A rank without samples is a warning in the evidence, the head without a file is an error.
        if reading is None or not (reading.text or spec.rank):
            raise RefusedError([deployment_run.read_failure(self.host, path)])
        return {"path": path, "reading": asdict(reading)}

    def _fetch(self, spec: Spec) -> dict[str, Any]:
        if spec.rank:
            return {"evidence": "", "refusal": ""}
        accepted = tuple(self.args.get("accepted") or ())
        merged = self._merged(spec.deployment.hosts, accepted)
        self.say(*ranks.summary(merged, accepted))
        path = self._file(Path(deployment_run.evidence_path(spec, self.args["profile"])).stem)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(merged.text, encoding="utf-8")
        try:
            self.show(*verdict.closing(path))
            refusal = str(deployment_run.without_figures(evidence.read(path)) or "")
        except RefusedError as error:
            refusal = str(error)
        return {"changed": True, "evidence": str(path), "refusal": refusal}

    def _merged(self, hosts: Sequence[str], accepted: tuple[str, ...]) -> ranks.Merged:
        """Return the evidence of the head, the first host, with the samples of the others."""
        read = self.results(results.EVIDENCE, hosts)
        readings = {host: Reading.from_json(read[host]) for host in hosts}
        head = readings.pop(hosts[0])
        samples = [ranks.samples(host, reading, head.clock) for host, reading in readings.items()]
        return ranks.merge(head.text, samples, accepted)

    def _starts(self, spec: Spec) -> dict[str, Any]:
        run = self.args["run"]
        if spec.rank:
            return {"evidence": ""}
        path = self._file(f"{spec.deployment.name}-{run['profile']['name']}")
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

    def _file(self, name: str) -> Path:
        """Return a new file of the folder of the evidence."""
        return Path(self.args["folder"]) / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}{evidence.SUFFIX}"
