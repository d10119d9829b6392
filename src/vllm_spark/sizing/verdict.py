"""The forecast of a recipe with every refusal that needs no inventory. Pure but for the file of known issues."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from vllm_spark.core.types import Document, Facts
from vllm_spark.node.deployment_state import LENT
from vllm_spark.recipe import known_issues
from vllm_spark.sizing import forecast, memory
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest


def judged(
    recipe: Document,
    facts: Mapping[str, Facts],
    request: ForecastRequest,
    context: ForecastContext,
    accepted: Collection[str] = (),
) -> Forecast:
    """Return the forecast of a recipe on Sparks, the head's facts first. `accepted` are ids of known issues."""
    result = forecast.forecast(recipe["name"], recipe, facts, request, context)
    subject = known_issues.of_closed(recipe)
    refusals = [*known_issues.refusals(subject, accepted), *result.refusals]
    for host, host_facts in facts.items():
        # The memory of a unit that still runs, or that is lent, will be free again, by an amount that is not known.
        lent = any(state["state"] == LENT for state in host_facts.get("states", {}).values())
        if not (lent or host_facts.get("running_units")):
            refusals += memory.too_little_refusal(
                recipe["name"], host, recipe, host_facts["memory"], reference=context.reference
            )
    return replace(result, refusals=refusals, notes=[*result.notes, *known_issues.notes(subject, accepted)])
