"""The load of a forecast held against the recipe and the model: positions, longest request, and sequences at once."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import flag_names
from vllm_spark.recipe.architecture import Architecture

CONTEXT_TOO_LONG = register("context-too-long", runbook="plan-no-go")


def longest(recipe: Document, architecture: Architecture | None) -> int:
    """Return the tokens of the longest request that the engine accepts: of the recipe, or else of the model."""
    set_by_recipe = flag_names.positive_number(recipe["args"], "max-model-len")
    return set_by_recipe or (architecture.positions if architecture else 1)


def at_once(recipe: Document, streams: int) -> int:
    """Return how many of the streams the engine serves at once."""
    return min(streams, flag_names.positive_number(recipe["args"], "max-num-seqs") or streams)


def too_long(name: str, recipe: Document, architecture: Architecture | None, context: int | None) -> Iterator[Refusal]:
    """Refuse a context that the engine would refuse."""
    limit = longest(recipe, architecture)
    if architecture is None or context is None or context <= limit:
        return
    positions = f"the model has {architecture.positions} positions"
    fix = (
        f"raise overrides.args.max-model-len to {context}, or lower --context."
        if context <= architecture.positions
        else f"--context {limit} at the most, or a model with more positions (vllm-spark recipes)."
    )
    yield CONTEXT_TOO_LONG(
        what=f"{name} serves requests of {limit} tokens, and {positions}",
        expected=f"{context} tokens of context",
        fix=fix,
    )


def waiting(recipe: Document, streams: int) -> Iterator[str]:
    """Yield a note if some of the streams wait for others."""
    served = at_once(recipe, streams)
    if served < streams:
        rest = f"{streams - served} of {streams} streams wait"
        yield f"max-num-seqs is {served}: {rest}; the speed is that of {served} at once"
