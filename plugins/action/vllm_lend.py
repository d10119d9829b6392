"""Decide what stops on this host while memory of a Spark is lent, and say what was lent.

vllm_spark.lifecycle.lending decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import files
from vllm_spark.inventory import deployment
from vllm_spark.lifecycle import lending
from vllm_spark.lifecycle.lending import Wish
from vllm_spark.node import host_layout
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `decide` places the program on a host that takes part, and returns its commands. `report` says what was lent.
        "phase": {"type": "str", "choices": ["decide", "report"], "required": True},
        "spark": {"type": "str"},  # The Spark whose memory is lent.
        "gib": {"type": "float"},  # How many GiB.
        "hours": {"type": "float"},  # For how many hours; 0 with `until`.
        "until": {"type": "str"},  # Until when; empty with `hours`.
        "end": {"type": "bool"},  # End the lease now.
        "deployments": {"type": "raw"},  # The deployments of the inventory.
        "drain_s": {"type": "float"},  # The most seconds that running requests get.
    }

    def act(self) -> dict[str, Any]:
        wish = Wish(**{name: self.args[name] for name in ("spark", "gib", "hours", "until", "end")})
        return self._decide(wish) if self.args["phase"] == "decide" else self._report(wish)

    def _decide(self, wish: Wish) -> dict[str, Any]:
        facts = self.results(results.LEND_FACTS, self.play_hosts)
        part = lending.parts(wish, deployment.parse(self.args["deployments"]), facts, time.time())[self.host]
        line, steps = lending.line(part, acts=not self.check_mode), part.steps(self.args["drain_s"])
        if part.lease:
            self._place(facts[self.host]["files"])
        if wish.end and self.host == wish.spark and not part.ends:
            self.say("nothing is lent here")
        if self.check_mode and line:
            self.say(line)
        awaits = [host_layout.LEND, "--await", f"{wish.gib:g}"] if part.lease and self.host == wish.spark else []
        commands = {"begin": part.begin, "drain": steps.drain, "change": steps.change, "await": awaits}
        return {"involved": bool(part.begin), "line": line, **commands}

    def _place(self, present: Mapping[str, Sequence[str]]) -> None:
        """Ensure that the programs of this host know leases."""
        if wanted := [asdict(file) for file in files.lend_program() if file.differs(present)]:
            folders = [host_layout.CONFIG_DIR, host_layout.STATE_DIR, *files.module_folders()]
            self.execute("vllm_files", {"folders": folders, "files": wanted}, "changed_paths")

    def _report(self, wish: Wish) -> dict[str, Any]:
        if failed := self.result(results.LEND_STOPPED).get("said"):
            raise RefusedError([lending.not_stopped(self.host, failed)])
        told, free = self.result(results.LEND_BEGUN), self.result(results.LEND_FREE)
        self.say(lending.ended(told) if wish.end else self.result(results.LEND_LINE))
        self.say(*([lending.free(wish, free)] if free else []))
        return {}
