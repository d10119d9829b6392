"""Measured memory of engines (measured_memory.yml), for the page and the tests of vllm_spark.sizing.memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

import yaml

from vllm_spark.recipe import architecture
from vllm_spark.sizing import layout, reported_speeds
from vllm_spark.sizing.memory import MemoryModel

FILE = Path(__file__).with_name("measured_memory.yml")


class LoadedRow(TypedDict):
    """The weights of one rank, in GiB."""

    id: str
    architecture: str
    layout: str
    measured: float
    source: str
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


class ReservedRow(TypedDict):
    """The memory of a whole engine, in GiB. `weights` and `cache` are present if the report has them."""

    id: str
    utilization: float
    source: str
    measured: NotRequired[float]
    weights: NotRequired[float]
    cache: NotRequired[float]


class Measurements(TypedDict):
    """The file: three groups of rows."""

    loaded: Sequence[LoadedRow]
    cache: Sequence[CacheRow]
    reserved: Sequence[ReservedRow]


@cache
def measurements() -> Measurements:
    """Return the content of the file."""
    document: Measurements = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return document


def model(row: LoadedRow) -> MemoryModel:
    """Return the model that a row of `loaded` measured."""
    name = row["architecture"]
    return MemoryModel(
        architecture=architecture.load(name),
        layout=layout.widths(reported_speeds.document()["layouts"][row["layout"]]),
        kv_width=1.0,
        vision=row.get("vision", False),
        drafter=architecture.load(f"{name}-assistant") if row.get("drafter") else None,
    )
