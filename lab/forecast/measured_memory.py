"""Measured memory of engines (measured_memory.yml), for the page and the tests of vllm_spark.sizing.memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

from lab.forecast import reported_speeds
from vllm_spark.core import strict_yaml
from vllm_spark.recipe import architecture, loader
from vllm_spark.sizing import kv_cache, layout, memory
from vllm_spark.sizing.kv_cache import Cache, Use
from vllm_spark.sizing.memory import MemoryModel

FILE = Path(__file__).with_name("measured_memory.yml")


class LoadedRow(TypedDict):
    """The weights of one rank, in GiB: those of an architecture with a layout, or those of a recipe.

    `without` is "drafter" if the measured start had none.
    """

    id: str
    measured: float
    source: str
    architecture: NotRequired[str]
    layout: NotRequired[str]
    recipe: NotRequired[str]
    without: NotRequired[str]
    tensor_parallel: NotRequired[int]
    vision: NotRequired[bool]
    drafter: NotRequired[bool]


class CacheRow(TypedDict):
    """The cache of one rank: `room` in GiB, and the tokens and requests that the engine logged for `context`."""

    id: str
    architecture: str
    kv: str
    context: int
    batched: int
    room: float
    tokens: int
    source: str
    requests: NotRequired[float]
    tensor_parallel: NotRequired[int]
    before_0_20: NotRequired[bool]
    drafter: NotRequired[str]
    drafted: NotRequired[int]


class ReservedRow(TypedDict):
    """The memory of a whole engine, in GiB. `weights` and `cache` are present if the report has them."""

    id: str
    utilization: float
    source: str
    measured: NotRequired[float]
    weights: NotRequired[float]
    cache: NotRequired[float]


class LoadingRow(TypedDict):
    """The memory of a start at its peak and of the ready server, in GiB, above that before the start."""

    id: str
    peak: float
    ready: float
    source: str


class UnknownRow(TypedDict):
    """A recipe without a public log."""

    recipe: str
    why: str


class Measurements(TypedDict):
    """The file: three groups of rows, and the recipes without any."""

    loaded: Sequence[LoadedRow]
    cache: Sequence[CacheRow]
    reserved: Sequence[ReservedRow]
    loading: Sequence[LoadingRow]
    unknown: Sequence[UnknownRow]


@cache
def measurements() -> Measurements:
    """Return the content of the file."""
    document: Measurements = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return document


def model(row: LoadedRow) -> MemoryModel:
    """Return the model that a row of `loaded` measured."""
    if "recipe" in row:
        of_recipe = memory.model_of(loader.load(row["recipe"]).document)
        if of_recipe is None:
            raise ValueError(f"{row['recipe']} has no layout")
        return replace(of_recipe, drafter=None) if row.get("without") == "drafter" else of_recipe
    name = row["architecture"]
    return MemoryModel(
        architecture=architecture.load(name),
        layout=layout.widths(reported_speeds.document()["layouts"][row["layout"]]),
        kv_width=1.0,
        vision=row.get("vision", False),
        drafter=architecture.load(f"{name}-assistant") if row.get("drafter") else None,
    )


def cache_of(row: CacheRow) -> Cache:
    """Return the cache that a row of `cache` measured."""
    drafter = architecture.load(row["drafter"]) if "drafter" in row else None
    return kv_cache.of(
        architecture.load(row["architecture"]),
        layout.WIDTHS[row["kv"]],
        row.get("tensor_parallel", 1),
        Use(drafter, row.get("drafted", 0)),
    )


def requests(cache: Cache, room: float, context: int, batched: int) -> float:
    """Return the number of requests of this length in `room` bytes: vLLM's `Maximum concurrency`."""
    return max(0.0, room) // cache.block_bytes * cache.block_bytes / cache.request_bytes(context, batched)


def logged_tokens(cache: Cache, room: float, context: int, batched: int, before_0_20: bool) -> int:
    """Return the `GPU KV cache size` that vLLM logs for a max-model-len of `context` and a cache of `room` bytes."""
    if before_0_20:
        tokens = min(group.block_tokens for group in cache.groups if not group.states)
        return int(room) // cache.block_bytes // sum(group.count for group in cache.groups) * tokens
    return int(requests(cache, room, context, batched) * context)
