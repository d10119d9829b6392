"""The forecast of a new recipe, and the longest context that fits it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.refusal import Refusal
from vllm_spark.core.types import Document
from vllm_spark.inventory import cabling, placement
from vllm_spark.recipe import known_issues
from vllm_spark.sizing import cable_plan, forecast, forecast_text, memory, reference_spark
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest

# A context is a multiple of this, and a server with less than the shortest is of no use.
STEP, SHORTEST = 1024, 4096


@dataclass(frozen=True, slots=True)
class Verdict:
    """A recipe with its forecast and every reason against it."""

    recipe: Document
    result: Forecast
    refusals: Sequence[Refusal]

    def lines(self, request: ForecastRequest) -> list[str]:
        """Return the forecast as text."""
        return forecast_text.lines(self.result, self.recipe, request)


def judge(recipe: Document, node_memory_gb: int, request: ForecastRequest, catalogue: Sequence[Document]) -> Verdict:
    """Return the verdict for idle Sparks of this memory."""
    facts = reference_spark.facts(recipe["topology"]["nodes"], node_memory_gb)
    context = ForecastContext(catalogue=catalogue, reference=True)
    result = forecast.forecast(recipe["name"], recipe, facts, request, context)
    subject = known_issues.of_closed(recipe)
    refusals = [
        *known_issues.refusals(subject, ()),
        *placement.executor_refusals(recipe),
        *result.refusals,
        *(
            refusal
            for host, known in facts.items()
            for refusal in memory.too_little_refusal(recipe["name"], host, recipe, known["memory"], reference=True)
        ),
    ]
    return Verdict(recipe, result, refusals)


def sized(recipe: dict[str, Any], node_memory_gb: int) -> dict[str, Any]:
    """Return the recipe with a share of the memory that the Spark has to give."""
    budget = recipe["memory"]
    if "utilization" not in budget:
        return recipe
    known = reference_spark.memory(node_memory_gb)
    beside = memory.floor_bytes(recipe) + sum(part.bytes for part in memory.beside(recipe))
    beside += cable_plan.head_bytes(recipe) if recipe["topology"]["nodes"] >= min(cabling.NUMBERS) else 0
    possible = int((known["available"] - beside) / known["total"] * 100) / 100
    return {**recipe, "memory": {**budget, "utilization": min(budget["utilization"], possible)}}


def longest_context(recipe: Document, node_memory_gb: int, most: int) -> int:
    """Return the longest context of which a request fits, at most `most`; 0 if none of SHORTEST does."""
    model = memory.model_of(recipe)
    if model is None:
        return most

    def fits(tokens: int) -> bool:
        fit = memory.fit(recipe, model, reference_spark.memory(node_memory_gb), tokens)
        return fit.room > 0 and fit.requests >= 1

    if fits(most):
        return most
    low, high = 0, most // STEP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle)
    return low * STEP if low * STEP >= min(SHORTEST, most) else 0
