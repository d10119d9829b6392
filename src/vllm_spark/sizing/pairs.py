"""Servers of several Sparks that may be slower than one Spark, as long as no all-reduce of the site is timed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.types import Document
from vllm_spark.core.units import GB
from vllm_spark.recipe import heads, rules
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import memory, reference_spark
from vllm_spark.sizing.constants import Constants

# The constants that two timings give: of a small all-reduce, and of a large one.
TIMED = frozenset({"all_reduce_s", "link"})


def held_by_one(recipe: Document) -> bool:
    """Return whether the largest share of one Spark holds the weights of a recipe and its workspace."""
    model = memory.model_of(recipe)
    weights = sum(model.loaded_bytes(1).values()) if model else memory.file_bytes(recipe)
    return weights + memory.workspace_bytes(recipe) < memory.LARGEST_SHARE * reference_spark.MEMORY["total"]


def unranked(recipe: Document, site: Constants) -> bool:
    """Return whether a server is not to be ranked above the same model on one Spark.

    Owners of a mixture with narrow experts measured 0.76 to 1.3 times one Spark, which follows from the time of an
    all-reduce: public ones are 40 to 140 us.
    """
    model = memory.model_of(recipe)
    several = recipe["topology"]["nodes"] > 1 and model is not None and model.architecture.experts is not None
    return several and not site.own >= TIMED and held_by_one(recipe)


def staged(recipe: Document, model: Architecture) -> Iterator[str]:
    """Yield why the Sparks of a recipe are stages of a pipeline, and what that costs; nothing if they are none."""
    nodes, stages = recipe["topology"]["nodes"], rules.stages_of(recipe)
    if stages > 1:
        uneven = ", ".join(heads.uneven(model, nodes))
        yield (
            f"{f'{nodes} ranks cannot share {uneven} evenly, so that ' * bool(uneven)}{stages} stages of a pipeline "
            "follow one another, without a drafter: one request is no faster than on one stage, and the forecast has "
            "no hops"
        )


def notes(recipe: Document, site: Constants) -> Iterator[str]:
    """Yield what to know of a server of several Sparks before it is chosen for its speed."""
    if model := memory.model_of(recipe):
        yield from staged(recipe, model.architecture)
    if unranked(recipe, site):
        yield (
            "one Spark holds this mixture of experts, and may be as fast: `ansible-playbook fabric.yml -e "
            "time_all_reduce=true` times the all-reduces of these Sparks, from which plan foresees which is"
        )
    elif recipe["topology"]["nodes"] > 1 and site.own >= TIMED:
        yield f"all-reduces as timed here: {site.all_reduce_s * 1e6:.0f} µs and {site.link / GB:.1f} GB/s"
