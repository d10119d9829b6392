"""Watch a start until it serves, then judge its gates. The looking is vllm_probe's, on the box; what is seen
means what vllm_spark.verify.startup and vllm_spark.verify.runner say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_spark.lifecycle import history
from vllm_spark.verify import report, runner, startup
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.verdict import Verdict, any_failed

display = Display()

# Long enough that looking costs a loading box nothing, short enough to see a phase pass.
LOOK_EVERY_S = 2.0
# A line at least this often, so that silence means trouble and not patience.
SAY_EVERY_S = 30.0

# What ansible.cfg names.
DEFAULT_INVENTORY = "inventories/site"


class ActionModule(ActionBase):
    """Args: gates, env_path and reason of a plan; report_dir; wait (false: judge what is there); fail (false: a gate
    that does not hold is told in the result, `holds` and `missed`, for what comes next to act on)."""

    _supports_check_mode = True

    def run(self, tmp: object = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        self._host = self._vars["inventory_hostname"]
        request = GateRequest.from_json(self._task.args["gates"])
        seen = startup.StartupWatch(deadline_s=request.deadline_s)
        try:
            missed, written = self._report(request, *self._judge(request, seen))
        except startup.NotServingError as error:
            missed, written = str(error), {}
        if missed and self._task.args.get("fail", True):
            raise AnsibleActionFail(missed)
        return {"changed": False, "holds": not missed, "missed": missed, **written}

    def _judge(self, request: GateRequest, seen: startup.StartupWatch) -> tuple[list[Verdict], dict[str, Any]]:
        """(the verdicts, each said as soon as it is known; how the run of the unit stands)."""
        started = time.monotonic()
        first, *others = runner.rounds(request)
        probe = self._wait(request, seen, first) if self._task.args["wait"] else self._look(request, seen, first)
        running = {
            "waited_s": round(time.monotonic() - started, 1),
            "running_s": round(probe["running_s"], 1),
            "restarts": int(probe["unit"].get("NRestarts") or 0),
        }
        verdicts = self._judged(first, request, probe, seen)
        for part in others:
            if any_failed(verdicts):
                break
            self._say(f"… {part.name}: {len(part.requests)} questions")
            probe = self._look(request, seen, part, probe["cursor"])
            verdicts += self._judged(part, request, probe, seen)
        return verdicts, running

    def _judged(
        self, part: runner.Round, request: GateRequest, probe: dict[str, Any], seen: startup.StartupWatch
    ) -> list[Verdict]:
        verdicts = part.judge(request, probe, seen.lines)
        for verdict in verdicts:
            self._say(verdict.line())
        return verdicts

    def _report(self, request: GateRequest, verdicts: list[Verdict], run: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """(what does not hold, in words; what the task returns)."""
        run = {"host": self._host, "deployed_because": self._task.args["reason"], **run}
        closing = report.closing(request, verdicts, self._vars.get("ansible_host", self._host), self._inventory())
        document = report.verification(request, verdicts, {**run, "closing": closing})
        name = f"{request.container}-{self._host}-{time.strftime('%Y%m%dT%H%M%S')}"
        path = report.write(Path(self._task.args["report_dir"]), name, document)
        if document["holds"] and closing:
            display.display(closing)
        missed = "\n".join(str(verdict) for verdict in verdicts if verdict.ok is False)
        return missed, {"report": os.path.relpath(path), "gates": history.summarize(document["verdicts"]), **run}

    def _wait(self, request: GateRequest, seen: startup.StartupWatch, first: runner.Round) -> dict[str, Any]:
        said, said_at, cursor = "", 0.0, ""
        while True:
            probe = self._look(request, seen, first, cursor)
            cursor = probe["cursor"]
            state = seen.add(probe)
            if state == "ready":
                return probe
            if state == "failed":
                raise startup.NotServingError(startup.failure(seen, request.unit, self._host))
            if seen.elapsed_s > seen.deadline_s:
                raise startup.NotServingError(startup.overdue(seen, request.unit, self._host))
            phase = f"{seen.progress.phase} {seen.progress.percent}"
            if phase != said or time.monotonic() - said_at >= SAY_EVERY_S:
                self._say(seen.headline())
                said, said_at = phase, time.monotonic()
            time.sleep(LOOK_EVERY_S)

    def _look(
        self, request: GateRequest, seen: startup.StartupWatch, part: runner.Round, cursor: str = ""
    ) -> dict[str, Any]:
        result = self._execute_module(
            module_name="vllm_probe",
            module_args={
                "unit": request.unit,
                "container": request.container,
                "address": request.address,
                "port": request.port,
                "state_path": request.state_path,
                "env_path": self._task.args["env_path"],
                "requests": part.requests,
                "cursor": cursor,
            },
            task_vars=self._vars,
        )
        if "probe" not in result:
            raise AnsibleActionFail(result.get("msg", "the box did not answer"), result=result)
        if not self._task.args["wait"] and not cursor:
            seen.lines = result["probe"]["lines"]
        return result["probe"]

    def _inventory(self) -> str:
        """The -i that this run was given, as it is typed here; empty where ansible.cfg names it."""
        sources = self._vars.get("ansible_inventory_sources") or []
        shown = ",".join(os.path.relpath(source) for source in sources)
        return "" if shown == DEFAULT_INVENTORY else shown

    def _say(self, text: str) -> None:
        display.display(f"{self._host}  {text}")
