"""The reported speeds of data/speeds.yml beside the prediction: the table that the constants are judged by. Pure
but for reading that file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.recipe import architecture
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import roofline
from vllm_spark.sizing.roofline import Constants, Drafter, Load, Step

FILE = Path(__file__).with_name("reported_speeds.yml")


@dataclass(frozen=True, slots=True)
class Row:
    """One reported speed, in tok/s of each sequence, and the load that it was measured under."""

    id: str
    architecture: Architecture
    # Part -> name of its width; `experts` may be a mixture: width -> layers.
    layout: Mapping[str, Any]
    load: Load
    measured: float
    source: str

    def step(self, constants: Constants | None = None) -> Step:
        return roofline.step(self.architecture, mixed(self.layout), self.load, constants)

    def error(self, constants: Constants | None = None) -> float:
        """Predicted over measured, less 1."""
        return self.step(constants).tokens_per_s / self.measured - 1

    def naive_error(self) -> float:
        """The same of the napkin's figure."""
        names = {part: width if isinstance(width, str) else next(iter(width)) for part, width in self.layout.items()}
        return roofline.naive(self.architecture, names, self.load) / self.measured - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of several rows, as shares."""

    rows: int
    mean: float
    largest: float
    inside: int  # of 15 %

    @property
    def share_inside(self) -> float:
        return self.inside / self.rows


INSIDE = 0.15


def summary(errors: Sequence[float]) -> Summary:
    sizes = [abs(error) for error in errors]
    return Summary(len(sizes), sum(sizes) / len(sizes), max(sizes), sum(size <= INSIDE for size in sizes))


def mixed(layout: Mapping[str, Any]) -> dict[str, float]:
    """Bytes per weight of a layout whose parts may be mixtures of layers."""
    return {part: _width(width) for part, width in layout.items()}


def _width(width: str | Mapping[str, int]) -> float:
    if isinstance(width, str):
        return roofline.WIDTHS[width]
    layers = sum(width.values())
    return sum(roofline.WIDTHS[name] * count for name, count in width.items()) / layers


@cache
def document() -> Mapping[str, Any]:
    """The file as it is."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def rows(group: str) -> list[Row]:
    """The rows of one group: seeds, held_back or disputed."""
    return [_row(dict(entry), document()["layouts"]) for entry in document()[group]]


def _row(entry: dict[str, Any], layouts: Mapping[str, Mapping[str, Any]]) -> Row:
    model = architecture.load(entry.pop("architecture"))
    drafted, accepted = entry.pop("drafted", 0), entry.pop("accepted", 0.0)
    drafter = Drafter(architecture.load(f"{model.name}-assistant"), drafted, accepted) if drafted else None
    load = Load(
        context=entry.pop("context"),
        streams=entry.pop("streams", 1),
        tensor_parallel=entry.pop("tensor_parallel", 1),
        kv_width=roofline.WIDTHS[entry.pop("kv", "bf16")],
        drafter=drafter,
    )
    layout = layouts[entry.pop("layout")]
    return Row(architecture=model, layout=layout, load=load, **entry)
