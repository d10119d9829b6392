"""What the verb plan foresees for each host: the changes of a deploy, its refusals, and the forecast. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.core.types import Document, Facts
from vllm_spark.deploy import budgets, host_warnings, plan
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.deploy.plan import Plan, Purpose
from vllm_spark.inventory.intent import HostIntent, ranks_of
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import forecast, forecast_text
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest


@dataclass(frozen=True, slots=True)
class Preview:
    """What is foreseen for one host: its lines for the operator, and every reason why a deploy would refuse it.

    `plan` is None if a deploy would refuse. The head also has the forecast of its deployment; `forecast_lines` are its
    text. A host without an active deployment has only lines.
    """

    lines: list[str]
    refusals: list[Refusal]
    spec: Spec | None = None
    plan: Plan | None = None
    forecast: Forecast | None = None
    forecast_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreviewedDeploy:
    """A deploy that is not carried out. `intents` and `facts` are by host: those of a deployment, the head's first, or
    one without a deployment."""

    intents: Mapping[str, HostIntent]
    facts: Mapping[str, Facts]
    toolkit: str

    def by_host(self, load: ForecastRequest, context: ForecastContext) -> dict[str, Preview]:
        """Return the preview of each host, the head's first.

        That of the head has the refusals of the forecast. Raises RefusedError if the recipe permits no forecast.
        """
        ranks = {host: self._host(host) for host in self.intents}
        head = next(iter(ranks))
        if not (rank := self.intents[head].rank):
            return ranks
        recipe, refused = self._recipe(rank), [refusal for each in ranks.values() for refusal in each.refusals]
        foreseen = forecast.forecast(rank.deployment.name, recipe, self.facts, load, context)
        # The checks of a host refuse for its memory too.
        ids = {refusal.id for refusal in refused} & {forecast.NO_ROOM_FOR_THE_CACHE.id}
        own = [refusal for refusal in foreseen.refusals if refusal.id not in ids]
        foreseen = replace(foreseen, refusals=[*refused, *own])
        lines = tuple(forecast_text.lines(foreseen, recipe, load))
        refusals = [*ranks[head].refusals, *own]
        return {**ranks, head: replace(ranks[head], refusals=refusals, forecast=foreseen, forecast_lines=lines)}

    def _recipe(self, rank: Spec) -> Document:
        """Return the recipe of a deployment with its part of the memory, if it shares a Spark and fits there."""
        try:
            hosts = {host: HostContext(host, one, self.facts[host]) for host, one in ranks_of(self.intents).items()}
            return budgets.shared(hosts)[rank.host].spec.recipe
        except RefusedError:
            return rank.recipe

    def _host(self, host: str) -> Preview:
        """A model that is not downloaded yet is not a reason to refuse."""
        spec = self.intents[host].rank
        held = host_warnings.holders(ranks_of(self.intents), self.facts, host)
        purpose = Purpose(plan.ids_fixed_by_pull(spec, self.facts[host]) if spec else ())
        try:
            planned, lines = plan.of_host(self.intents, self.facts, host, self.toolkit, purpose)
        except RefusedError as error:
            own = [refusal for refusal in error.refusals if refusal.id != plan.REFUSED_WITH_HEAD.id]
            return Preview(held, own, spec)
        return Preview([*lines, *held], [], spec, planned if spec else None)
