"""Reported decode speeds (reported_speeds.yml) beside their prediction. The constants are fitted to this table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from vllm_spark.core import strict_yaml
from vllm_spark.recipe import architecture
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import layout, roofline
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.layout import Width
from vllm_spark.sizing.load import Drafter, Load
from vllm_spark.sizing.roofline import Step

FILE = Path(__file__).with_name("reported_speeds.yml")


class RowEntry(TypedDict):
    """A row as the file has it. `accepted` is the share of the `drafted` tokens that is accepted."""

    id: str
    architecture: str
    layout: str
    context: int
    measured: float
    source: str
    kv: NotRequired[str]
    streams: NotRequired[int]
    tensor_parallel: NotRequired[int]
    drafted: NotRequired[int]
    accepted: NotRequired[float]


class Reports(TypedDict):
    """The file. `not_predicted` has reports without enough data, each with the keys `what` and `why`."""

    layouts: Mapping[str, Mapping[str, Width]]
    seeds: Sequence[RowEntry]
    held_back: Sequence[RowEntry]
    disputed: Sequence[RowEntry]
    not_predicted: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One reported speed, in tok/s of each sequence, and the load of the measurement. `layout` is part -> width."""

    id: str
    architecture: Architecture
    layout: Mapping[str, Width]
    load: Load
    measured: float
    source: str

    def step(self, constants: Constants | None = None) -> Step:
        """Return the predicted step."""
        return roofline.step(self.architecture, layout.widths(self.layout), self.load, constants)

    def error(self, constants: Constants | None = None) -> float:
        """Return predicted / measured - 1."""
        return self.step(constants).tokens_per_s / self.measured - 1

    def naive_error(self) -> float:
        """Return the error of the naive prediction."""
        names = {part: width if isinstance(width, str) else next(iter(width)) for part, width in self.layout.items()}
        return naive(self.architecture, names, self.load) / self.measured - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Absolute errors of several rows, as shares. `inside` is the number of rows with an error of at most INSIDE."""

    rows: int
    mean: float
    largest: float
    inside: int

    @property
    def share_inside(self) -> float:
        return self.inside / self.rows


INSIDE = 0.15


def summary(errors: Sequence[float]) -> Summary:
    """Return the summary of signed errors."""
    sizes = [abs(error) for error in errors]
    return Summary(len(sizes), sum(sizes) / len(sizes), max(sizes), sum(size <= INSIDE for size in sizes))


@cache
def document() -> Reports:
    """Return the content of the file."""
    reports: Reports = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return reports


def rows(group: Literal["seeds", "held_back", "disputed"]) -> list[Row]:
    """Return the rows of one group."""
    return [_row(entry) for entry in document()[group]]


def _row(entry: RowEntry) -> Row:
    model = architecture.load(entry["architecture"])
    drafted = entry.get("drafted", 0)
    drafter = architecture.load(f"{model.name}-assistant") if drafted else None
    return Row(
        id=entry["id"],
        architecture=model,
        layout=document()["layouts"][entry["layout"]],
        load=Load(
            context=entry["context"],
            streams=entry.get("streams", 1),
            tensor_parallel=entry.get("tensor_parallel", 1),
            kv_width=layout.WIDTHS[entry.get("kv", "bf16")],
            drafter=Drafter(drafter, drafted, entry.get("accepted", 0.0)) if drafter else None,
        ),
        measured=entry["measured"],
        source=entry["source"],
    )


def naive(architecture: Architecture, bits: Mapping[str, str], load: Load) -> float:
    """Return the naive speed in tok/s, for comparison: 273 GB/s over the active weights at the width in the name."""
    label = {"bf16": 2.0, "fp8": 1.0, "nvfp4": layout.WIDTHS["nvfp4"], "int4-g32": 0.5}
    width = min(label[name] for part, name in bits.items() if part != "head")
    accepted = load.drafter.tokens_per_step if load.drafter else 1.0
    return accepted * load.tensor_parallel * 273e9 / (architecture.active * width)
