"""The report of the verb plan on one host: the changes of a deploy, its refusals, and the forecast. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Facts
from vllm_spark.deploy import plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing import constants as hardware
from vllm_spark.sizing import forecast, forecast_text
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest

INVENTORY_REFUSED = register("inventory-refused", runbook="inventory-refused")


@dataclass(frozen=True, slots=True)
class Preview:
    """The lines for the operator, and every reason why a deploy would refuse."""

    lines: list[str]
    refusals: list[Refusal]


@dataclass(frozen=True, slots=True)
class PreviewedDeploy:
    """A deploy that is not carried out. `specs` and `facts` are by host of the deployment, the head's first."""

    specs: Mapping[str, Spec]
    facts: Mapping[str, Facts]
    toolkit: str

    def on(self, host: str, load: ForecastRequest, context: ForecastContext) -> Preview:
        """Return the preview of one host.

        That of the head also has the forecast of the deployment and the refusals of the workers. Raises RefusedError if
        the recipe permits no forecast.
        """
        head, *workers = self.specs
        recipe = self.specs[head].recipe
        foreseen = forecast.forecast(self.specs[head].deployment.name, recipe, self.facts, load, context)
        own = self._rank(host)
        if host != head:
            return own
        others = [refusal for worker in workers for refusal in self._rank(worker).refusals]
        refused = [*own.refusals, *(refusal for refusal in others if refusal.id != plan.REFUSED_WITH_HEAD.id)]
        # The checks of a host refuse for its memory too.
        ids = {refusal.id for refusal in refused} & {forecast.NO_ROOM_FOR_THE_CACHE.id}
        refusals = [*refused, *(refusal for refusal in foreseen.refusals if refusal.id not in ids)]
        lines = forecast_text.lines(replace(foreseen, refusals=refusals), recipe, load)
        return Preview([*own.lines, *lines], refusals)

    def _rank(self, host: str) -> Preview:
        """A model that is not downloaded yet is not a reason to refuse."""
        awaited = plan.ids_fixed_by_pull(self.specs[host], self.facts[host])
        try:
            return Preview(plan.of_host(self.specs, self.facts, host, self.toolkit, plan.Purpose(awaited))[1], [])
        except RefusedError as error:
            return Preview([], list(error.refusals))


def constants(overrides: Mapping[str, float]) -> Constants:
    """Return the roofline constants with those of vllm_roofline. Raises RefusedError for an unknown name or value."""
    try:
        return hardware.constants_of(overrides)
    except (TypeError, ValueError) as error:
        refusal = INVENTORY_REFUSED(
            what=f"vllm_roofline: {error}",
            expected="numbers, under the names of docs/reference/prediction.md",
            fix="correct vllm_roofline in the inventory.",
        )
        raise RefusedError([refusal]) from error
