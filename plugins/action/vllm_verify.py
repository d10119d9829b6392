"""Judge the gates of a rank or of an edge alone, and end a verification.

The module vllm_probe sends the requests on the host. vllm_spark.verify decides what the replies mean.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_requests import send

from vllm_spark.core import inventory_host
from vllm_spark.doctor.places import Place
from vllm_spark.lifecycle import history
from vllm_spark.node.engine_api import PROOFS
from vllm_spark.node.host_layout import deployment_of
from vllm_spark.verify import nccl, report, startup
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import edge, reach
from vllm_spark.verify.probe_types import HttpRequest, HttpResponse, Probe
from vllm_spark.verify.runner import Round
from vllm_spark.verify.verdict import Verdict
from vllm_spark.verify.verification import Verification
from vllm_spark_ansible import edge_probe, results
from vllm_spark_ansible.edge_probe import EdgeProbeAction
from vllm_spark_ansible.resolved import intent_of

# Fields of the gates of a plan that the module needs, too.
PROBED = ("unit", "container", "address", "port", "state_path")


class ActionModule(EdgeProbeAction):
    arguments: ClassVar = {
        # `gates` waits until a rank serves, judges its gates and writes the report. `edge` judges the edge of a Spark
        # that is the head of no active deployment, and fails with every condition that does not hold. `end` fails if
        # this rank has missed a gate. The message names the first cause among all ranks of the deployment, whose
        # results are registered as `vllm_verify_judged`.
        "phase": {"type": "str", "choices": ["gates", "edge", "end"], "required": True},
        "gates": {"type": "dict"},  # The gates of a plan. Of `gates`, like each argument that names no phase.
        "env_path": {"type": "str"},  # The env file on the host.
        "reason": {"type": "str"},  # Why the launch was deployed.
        "report_dir": {"type": "str"},  # The folder of the report on the controller.
        "wait": {"type": "bool"},  # Whether to wait for the server. False judges its present state.
        # Whether to judge also the gates that the recipe names. They are judged without this argument. Of `gates`.
        "thorough": {"type": "bool"},
        "closing": {"type": "bool"},  # Whether to print how to use the server. It is printed without this argument.
        # The folder of the site's authority on the controller. An edge needs it. Of `gates` and `edge`.
        "authority": {"type": "str"},
        "hosts": {"type": "list", "elements": "str"},  # The hosts of the deployment. Of `end`.
    }

    _last_probe: Probe

    def act(self) -> dict[str, Any]:
        phases = {"gates": self._gates, "edge": self._edge, "end": self._end}
        return phases[self.args["phase"]]()

    def _gates(self) -> dict[str, Any]:
        """Wait until the rank serves, then judge its gates and write the report."""
        request = GateRequest.from_json(self.args["gates"])
        watch = startup.StartupWatch(request.deadline_s, PROOFS[request.role].word)
        try:
            how = {"brief": not self.verbose, "thorough": self.args.get("thorough", True)}
            run_of = Verification(request, self._place(request), self._probe, self.say, watch, **how)
            verdicts, run = run_of.run(wait=self.args["wait"])
            missed = "\n".join(str(verdict) for verdict in verdicts if verdict.ok is False)
            written = self._report(request, verdicts, run)
        except startup.NotServingError as error:
            missed, written = str(error), {"remoteness": error.remoteness}
        return {"holds": not missed, "missed": missed, "nccl": nccl.versions(watch.lines), **written}

    def _address(self) -> str:
        return inventory_host.address(self.host, self.task_vars)

    def _edge(self) -> dict[str, Any]:
        """Judge the edge of a Spark that is the head of no active deployment."""
        intent = intent_of(self.host, self.hostvars[self.host])
        if not (intent and intent.edge):
            return {"holds": True}
        target = EdgeTarget.of_edge(intent.edge)
        verdicts = list(edge.verdicts(target, self.edge_responses(target)))
        if missed := "\n".join(str(verdict) for verdict in verdicts if verdict.ok is False):
            self.fail(missed)
        url = target.client_url(self._address())
        self.say(f"✓ the edge of {url} holds its gate: {', '.join(verdict.id for verdict in verdicts if verdict.ok)}")
        return {"holds": True}

    def _end(self) -> dict[str, Any]:
        """Fail if this rank has missed a gate, with the first cause among the ranks of its deployment, or if the ranks
        have different versions of NCCL."""
        judged = self.results(results.JUDGED, self.args["hosts"], default={})
        differing = list(nccl.refusals({host: result.get("nccl", ()) for host, result in judged.items()}))
        missed = [*map(str, differing), startup.first_causes(judged)[self.host]]
        if text := "\n".join(filter(None, missed)):
            self.fail(text, differing)
        return {}

    def _probe(self, round_: Round, cursor: str) -> Probe:
        if round_.name == edge.NAME:
            target = GateRequest.from_json(self.args["gates"]).target
            found = cast("HttpResponse", self.edge_responses(target, self._last_probe["responses"].get(edge.NAME)))
            return {**self._last_probe, "responses": {edge.NAME: found}}
        if round_.name == reach.NAME:
            return {**self._last_probe, "responses": {reach.NAME: self._reach()}}
        self._last_probe = self._probe_host(round_.requests, cursor)
        return self._last_probe

    def _probe_host(self, requests: Sequence[HttpRequest], cursor: str) -> Probe:
        request = {key: self.args["gates"][key] for key in (*PROBED, "socket") if key in self.args["gates"]}
        args = {**request, "env_path": self.args["env_path"], "requests": requests, "cursor": cursor}
        gates = GateRequest.from_json(self.args["gates"])
        # A server that keeps running is ready at once: one round trip has its answers and those of its edge.
        if not (cursor or gates.rank or self.args.get("thorough", True)) and edge.applies(gates):
            args["edge"] = edge_probe.requests(gates.target)
        probe: Probe = self.execute("vllm_probe", args, "probe")["probe"]
        return probe

    def _reach(self) -> HttpResponse:
        """Return the response of the printed address: from the controller to a head, from a worker to its head."""
        request = GateRequest.from_json(self.args["gates"])
        head = next(iter(self._hosts(request.unit)), "") if request.rank else self.host
        if not head:
            return {"unasked": "this run does not know the head"}
        url = request.client_url(inventory_host.address(head, self.hostvars[head]))
        if request.rank:
            sent: HttpRequest = {**reach.http_request(), "base": url}
            response = self._probe_host([sent], self._last_probe["cursor"])["responses"][reach.NAME]
            return {**response, "url": url, "source": f"from {self.host}"}
        if why := self.obstacle():
            return {"unasked": why, "url": url}
        server = urllib.parse.urlsplit(url)
        answer = send((str(server.hostname), server.port or 0), reach.http_request(), "")
        return cast("HttpResponse", {**answer, "url": url, "source": "from this machine"})

    def _place(self, request: GateRequest) -> Place:
        name, hosts = deployment_of(request.unit), self._hosts(request.unit)
        return Place.of_host(self.host, self.hostvars[self.host], deployment=name, hosts=hosts, image=request.image)

    def _hosts(self, unit: str) -> list[str]:
        """Return the hosts of the deployment with this unit, the head first; none if this run has resolved another
        deployment, as where an old one returns."""
        spec = results.SPEC.of(self.hostvars[self.host]) or {}
        deployment = spec.get("deployment", {})
        return list(deployment["hosts"]) if f"vllm@{deployment.get('name')}.service" == unit else []

    def _report(self, request: GateRequest, verdicts: list[Verdict], run: dict[str, Any]) -> dict[str, Any]:
        run = {"host": self.host, "deployed_because": self.args["reason"], **run}
        closing = report.closing(request, verdicts, self._address(), self.authority(request.target))
        document = report.verification(request, verdicts, {**run, "closing": closing})
        name = f"{request.container}-{self.host}-{time.strftime('%Y%m%dT%H%M%S')}"
        path = report.write(Path(self.args["report_dir"]), name, document)
        if document["holds"] and closing and self.args.get("closing", True):
            self.show(closing)
        return {"report": os.path.relpath(path), "gates": history.summarize(document["verdicts"]), **run}
