"""The base class of the action plugins that run a job on the host. vllm_spark.node.host_job describes a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from vllm_spark_ansible.action import SparkAction


class JobAction(SparkAction):
    """An action plugin that starts a job and watches it. The module spark_host_job does both on the host."""

    poll_interval_s = 1.0

    def job(self, name: str, **args: object) -> dict[str, Any]:
        """Run an action of spark_host_job on a job and return its result."""
        return self.execute("spark_host_job", {"job": name, **args})

    def states(self, name: str, **start: object) -> Iterator[dict[str, Any]]:
        """Start a job and yield its states: `progress`, and in the last one `result`.

        There is no deadline here: each job ends by itself. A job that does not start, or that cannot be watched, has a
        result too.
        """
        reply = self.job(name, action="start", **start)
        while not reply.get("failed"):
            reply = self.job(name, action="watch")
            if reply.get("result"):
                self.job(name, action="stop")
                yield reply
                return
            if not reply.get("failed"):
                yield reply
                time.sleep(self.poll_interval_s)
        yield {"result": {"ok": False, "detail": reply.get("msg", "")}}
