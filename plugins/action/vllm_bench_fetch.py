"""Write the evidence of a measurement on the controller, with the samples of all ranks, and print its verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_spark.bench import deployment_run, evidence, ranks, verdict
from vllm_spark.bench.ranks import Reading
from vllm_spark.inventory.spec import Spec
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: spec of this host; profile; accepted, as for vllm_bench; folder (evidence on the controller).

    The results of vllm_bench_read are registered as `vllm_bench_read`. Returns `evidence`, the path, and
    `without_figures`, the refusal of a run with cells that have no figures. Both are empty on another rank than the
    head, where it does nothing, and the second one for a run with all figures.
    """

    quiet = True

    def act(self) -> dict[str, Any]:
        spec = Spec.from_json(self.args["spec"])
        if spec.rank:
            return {"evidence": "", "without_figures": ""}
        accepted = tuple(self.args.get("accepted") or ())
        merged = self._merged(spec.deployment.hosts, accepted)
        self.say(*ranks.summary(merged, accepted))
        source = deployment_run.evidence_path(spec, self.args["profile"])
        path = self._write(f"{Path(source).stem}-{time.strftime('%Y%m%dT%H%M%S')}{evidence.SUFFIX}", merged.text)
        self.show(*verdict.closing(path))
        refusal = deployment_run.without_figures(evidence.read(path))
        return {"changed": True, "evidence": str(path), "without_figures": str(refusal or "")}

    def _merged(self, hosts: Sequence[str], accepted: tuple[str, ...]) -> ranks.Merged:
        """Return the evidence of the head, the first host, with the samples of the others."""
        read = self.registered("vllm_bench_read", "reading", hosts)
        readings = {host: Reading.from_json(read[host]) for host in hosts}
        head = readings.pop(hosts[0])
        samples = [ranks.samples(host, reading, head.clock) for host, reading in readings.items()]
        return ranks.merge(head.text, samples, accepted)

    def _write(self, name: str, content: str) -> Path:
        path = Path(self.args["folder"]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path
