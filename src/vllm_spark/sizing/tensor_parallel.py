"""A recipe on another number of ranks, and the speed on so many. Pure."""

from __future__ import annotations

from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.recipe import heads
from vllm_spark.sizing import forecast, memory
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.prediction import Prediction


def on_ranks(recipe: Document, nodes: int, tensor_parallel: int) -> Document:
    """Return a recipe for another number of Sparks, in stages of a pipeline if fewer share a layer. It is for a
    forecast.

    A peak of loading that was measured on the recipe's own number does not hold for another one.
    """
    kept = {key: value for key, value in recipe["memory"].items() if key != "loading_peak_bytes"}
    return {**recipe, "topology": topology(nodes, tensor_parallel), "memory": kept}


def topology(nodes: int, tensor_parallel: int) -> dict[str, Any]:
    """Return the block `topology` of a recipe for so many Sparks, of which `tensor_parallel` share a layer."""
    stages = {"pipeline_parallel": nodes // tensor_parallel} if nodes > tensor_parallel else {}
    executor = "mp" if nodes > 1 else "uni"
    return {"nodes": nodes, "tensor_parallel": tensor_parallel, **stages, "executor": executor}


def predicted(recipe: Document, ranks: int, request: ForecastRequest, known: Constants) -> Prediction | None:
    """Return the speed on so many ranks, or None if they cannot share its heads or a dimension is not known."""
    model = memory.model_of(recipe)
    if model is None or heads.uneven(model.architecture, ranks):
        return None
    return forecast.predicted(on_ranks(recipe, ranks, ranks), request, known)
