"""Which numbers of ranks can share the tensors of a model, and the speed on so many. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.types import Document
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import forecast, memory
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.prediction import Prediction

# Fields of a layer whose number each rank has an equal part of (vLLM config/model.py, verify_with_parallel_config, and
# the layers of the models).
HEADS = {"heads": "attention heads", "key_heads": "key heads", "value_heads": "value heads"}


def uneven(architecture: Architecture, ranks: int) -> list[str]:
    """Return the numbers of heads that so many ranks cannot share evenly, in words. Empty if they can.

    K and V may have fewer heads than there are ranks, and each rank then has a copy of one.
    """
    return list(dict.fromkeys(_uneven(architecture, ranks)))


def _uneven(architecture: Architecture, ranks: int) -> Iterator[str]:
    for group in architecture.attention:
        for field, name in HEADS.items():
            number = getattr(group, field, 0)
            if number % ranks:
                yield f"{number} {name}"
        shared = getattr(group, "kv_heads", 0)
        if shared and shared % ranks and ranks % shared:
            yield f"{shared} heads of K and V"


def on_ranks(recipe: Document, nodes: int, tensor_parallel: int) -> Document:
    """Return a recipe for another number of Sparks. It is for a forecast: no deployment takes more than two.

    A peak of loading that was measured on the recipe's own number does not hold for another one.
    """
    executor = "mp" if nodes > 1 else "uni"
    kept = {key: value for key, value in recipe["memory"].items() if key != "loading_peak_bytes"}
    topology = {"nodes": nodes, "tensor_parallel": tensor_parallel, "executor": executor}
    return {**recipe, "topology": topology, "memory": kept}


def predicted(recipe: Document, ranks: int, request: ForecastRequest, known: Constants) -> Prediction | None:
    """Return the speed on so many ranks, or None if they cannot share its heads or a dimension is not known."""
    model = memory.model_of(recipe)
    if model is None or uneven(model.architecture, ranks):
        return None
    return forecast.predicted(on_ranks(recipe, ranks, ranks), request, known)
