"""Collect the logs of a host, diagnose them and write the support bundle; then name the bundles of a pair together.

The module returns the logs in its result, so one round trip suffices and no file is left on the host. The texts end in
this process: no registered variable and no callback gets them. vllm_spark.doctor.support_bundle does the work.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from vllm_spark.core import version
from vllm_spark.doctor import command, support_bundle
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `host` collects from this host. `pairs` names the bundles of each pair together, from the results that all
        # hosts have registered as `vllm_collect_done`.
        "phase": {"type": "str", "choices": ["host", "pairs"], "required": True},
        "report_dir": {"type": "str"},  # The folder of the bundle on the controller. `host` needs it.
        "deployments": {"type": "raw"},  # The deployments of the inventory, not checked.
    }

    def act(self) -> dict[str, Any]:
        return self._pairs() if self.args["phase"] == "pairs" else self._host()

    def _host(self) -> dict[str, Any]:
        folder = Path(self.args["report_dir"]).resolve()
        support_bundle.prepare(folder)
        started_at = time.time()
        packed = self.execute("vllm_collect_logs", {}, "collected")["collected"]
        try:
            collected = support_bundle.unpack(packed)
            places = support_bundle.places(collected, self.host, self.hostvars[self.host], self.args["deployments"])
            examination = support_bundle.examine(collected, places)
            run = support_bundle.CollectRun(self.host, version.version(), started_at, time.time(), places)
            path = support_bundle.write(folder, collected, examination, run)
        except ValueError as error:
            self.fail(str(error))
        self.say(*support_bundle.report_lines(collected, examination, run, path))
        return {
            "bundle": str(path),
            "deployments": support_bundle.states(collected),
            "findings": command.to_json(examination.current, examination.current_logs)["findings"],
        }

    def _pairs(self) -> dict[str, Any]:
        bundles = self.having(results.BUNDLE, self.play_hosts_all)
        deployments = self.results(results.COLLECTED, bundles)
        lines = list(support_bundle.pairs(self.args["deployments"], bundles, deployments))
        self.show(*lines)
        return {"lines": lines}
