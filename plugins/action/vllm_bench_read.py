"""Read the files of a measurement: evidence of the head, samples of the other ranks, and the clock of each host."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from typing import Any

from vllm_spark.bench import deployment_run, ranks
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: spec of this host; profile. Returns `path`, the file on the host, and `reading`, a ranks.Reading."""

    quiet = True

    def act(self) -> dict[str, Any]:
        spec = Spec.from_json(self.args["spec"])
        path = deployment_run.evidence_path(spec, self.args["profile"])
        sent = time.time()
        printed = self.shell(ranks.command(shlex.quote(path)))
        reading = ranks.reading(printed, sent, time.time())
        # A rank without samples is a warning in the evidence, the head without a file is an error.
        if reading is None or not (reading.text or spec.rank):
            raise RefusedError([deployment_run.read_failure(self.host, path)])
        return {"path": path, "reading": asdict(reading)}
