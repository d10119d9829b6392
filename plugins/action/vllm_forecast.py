"""Report what a deploy would do on all hosts of the run, whether it can, and the forecasts. A refusal fails the run
once all deployments have been reported (vllm_plan_verdict).

vllm_spark.deploy.preview decides, vllm_spark.deploy.preview_table shows it. One task reports all hosts: the recipes to
compare with are read once, and what many hosts have in common is one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsiblePromptInterrupt, AnsiblePromptNoninteractive

from vllm_spark.bench.measured_here import Measurements
from vllm_spark.core import removed, version
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.deploy import consent, preview, preview_document, preview_table, replicas
from vllm_spark.deploy.preview import Preview
from vllm_spark.inventory import link_timing
from vllm_spark.sizing import constants, forecast
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest
from vllm_spark_ansible import resolved, results
from vllm_spark_ansible.action import SparkAction, display


class ActionModule(SparkAction):
    arguments: ClassVar = {
        "context": {"type": "int", "required": True},  # The tokens of a context. 0 is that of the recipe.
        "streams": {"type": "int", "required": True},  # The number of requests at a time. 0 is one.
        "min_speed": {"type": "float", "required": True},  # The least tokens per second of one request.
        "roofline": {"type": "raw", "required": True},  # The constants of the site.
        "bench_folder": {"type": "str", "required": True},  # The evidence of the bench on the controller.
        "timing_folder": {"type": "str", "required": True},  # The timings of fabric.yml on the controller.
        # A file that release 0.1.0 wrote, and that is read no more.
        "former_constants": {"type": "str", "required": True},
        "recipe_folders": {"type": "list", "elements": "str", "required": True},  # Folders that contain recipes.
        # Whether a person must agree before the run goes on to a download. Nobody is asked in check mode, without a
        # download, and without a terminal.
        "ask": {"type": "bool", "required": True},
        # Whether the lines of each host are few, because a deploy follows, which tells what it changes.
        "short": {"type": "bool", "required": True},
    }

    quiet = True

    def act(self) -> dict[str, Any]:
        load = ForecastRequest(
            int(self.args["context"]) or None, int(self.args["streams"]) or 1, float(self.args["min_speed"])
        )
        previews = self._previews(load)
        if Path(self.args["former_constants"]).exists():
            self.show(removed.CONSTANTS.format(file=self.args["former_constants"]))
        self.show(*removed.roofline_notes(self.args["roofline"]))
        refusals = [
            {"host": host, **refusal}
            for host, foreseen in previews.items()
            for refusal in self.refusals_to_json(foreseen.refusals)
        ]
        # Deployments of one Spark have some in common.
        earlier = self.having(results.PLAN_REFUSALS, [self.host]).get(self.host, [])
        new = [refusal for refusal in refusals if refusal not in earlier]
        document = {**preview_document.body(previews, load), "refusals": new}
        few = len(previews) <= preview_table.DETAILED
        if few or self.verbose:
            # A refusal is a reason to read all of it, and a check has no deploy that tells the rest.
            short = self.args["short"] and not (refusals or self.verbose or self.check_mode)
            for host, foreseen in previews.items():
                lines = preview_table.short(host, previews) if short else preview_table.details(foreseen)
                self.show(*(f"{host}  {line}" for line in lines))
        if not few:
            self.show(preview_table.table(previews), *preview_table.notes(previews), preview_table.summary(previews))
        if not self.args["short"]:
            self.show(*replicas.lines(previews, load, self.known))
        before = self.having(results.PLAN_REFUSED, [self.host]).get(self.host, [])
        refused = list(dict.fromkeys([*before, *preview_table.refusals(previews)]))
        if not refused and (download := consent.download(previews)):
            self._ask(download)
        return {"document": document, "refused": refused, "all_refusals": [*earlier, *new]}

    def _ask(self, download: str) -> None:
        """Let a person agree to a download if the task asks. The run of a script, without a terminal, goes on."""
        if not self.args["ask"]:
            return
        self.show(download)
        if self.check_mode:
            return
        try:
            answer = display.prompt_until(consent.QUESTION)
        except AnsiblePromptNoninteractive:
            return
        except AnsiblePromptInterrupt:
            answer = b""
        if not consent.agrees(answer.decode(errors="replace")):
            self.fail_run([consent.DECLINED])

    def _previews(self, load: ForecastRequest) -> dict[str, Preview]:
        """Return the previews of the hosts of the play. Raises RefusedError for a wrong constant of the site."""
        folders = [Path(folder) for folder in self.args["recipe_folders"]]
        context = self._context(self.known, forecast.catalogue(folders))
        previews: dict[str, Preview] = {}
        turns = self.results(results.TURN, self.play_hosts, default=[])
        # Other hosts have their results from an earlier turn.
        for host in (host for host in self.play_hosts if turns[host] == turns[self.host]):
            if host not in previews:
                try:
                    previews |= self._deployment(host, load, context)
                except RefusedError as error:
                    previews[host] = Preview([], list(error.refusals))
        return previews

    def _deployment(self, host: str, load: ForecastRequest, context: ForecastContext) -> dict[str, Preview]:
        """Return the previews of the hosts of a deployment that has this host, or of a host without one."""
        intents = resolved.intents_of(self, host)
        if timing := link_timing.read(Path(self.args["timing_folder"]), list(intents)):
            context = self._context(constants.of_site(self.args["roofline"], timing), context.catalogue)
        facts = self.results(results.PLAN_FACTS, intents, asks=host)
        if rank := intents[host].rank:
            context = replace(context, hub_dir=rank.site.hub_dir)
        return preview.PreviewedDeploy(intents, facts, self.toolkit).by_host(load, context)

    def _context(self, known: Constants, catalogue: Sequence[Document]) -> ForecastContext:
        measured = Measurements(Path(self.args["bench_folder"]), known).of
        return ForecastContext(constants=known, measured=measured, catalogue=catalogue)

    @cached_property
    def known(self) -> Constants:
        """The constants of the site. Raises RefusedError for a wrong one."""
        return constants.of_site(self.args["roofline"])

    @cached_property
    def toolkit(self) -> str:
        """The version and commit of this checkout."""
        return version.version()
