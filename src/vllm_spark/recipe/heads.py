"""Which numbers of ranks can share the heads of a model. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.recipe.architecture import Architecture

# Fields of a layer whose number each rank has an equal part of (vLLM config/model.py, verify_with_parallel_config, and
# the layers of the models).
HEADS = {"heads": "attention heads", "key_heads": "key heads", "value_heads": "value heads"}


def uneven(architecture: Architecture, ranks: int) -> list[str]:
    """Return the numbers of heads that so many ranks cannot share evenly, in words. Empty if they can.

    K and V may have fewer heads than there are ranks, and each rank then has a copy of one.
    """
    return list(dict.fromkeys(_uneven(architecture, ranks)))


def most(architecture: Architecture, sparks: int) -> int:
    """Return how many of the Sparks share each layer at most. The others are further stages of a pipeline."""
    return next(size for size in range(sparks, 0, -1) if sparks % size == 0 and not uneven(architecture, size))


def _uneven(architecture: Architecture, ranks: int) -> Iterator[str]:
    for group in architecture.attention:
        for field, name in HEADS.items():
            number = getattr(group, field, 0)
            if number % ranks:
                yield f"{number} {name}"
        shared = getattr(group, "kv_heads", 0)
        if shared and shared % ranks and ranks % shared:
            yield f"{shared} heads of K and V"
