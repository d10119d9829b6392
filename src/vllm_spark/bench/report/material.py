"""What a plot gets, and what it gives: runs in, drawings with a legend out. A plot is one file in plots/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from vllm_spark.bench.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Forecast:
    """Terms of the forecast of one cell, in ms per step and in order: bytes, layers, all-reduce, drafter.

    `measured` has the terms that were measured one by one; it may be empty."""

    cell: str
    terms: Mapping[str, float]
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Material:
    """The runs of a report in the order of their letters, and the forecast if there is one."""

    runs: tuple[Evidence, ...]
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn plot: (title, svg) of each panel, and (sample, key, text) of each series. A note ends the caption.

    The svg of a `wide` plot fills the page; it has a second, narrow svg beside it for phones."""

    panels: tuple[tuple[str, Markup], ...]
    legend: tuple[tuple[Markup, str, str], ...] = ()
    note: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the report. `draw` returns None if the runs have no data for it. `order` is its place on the page."""

    id: str
    order: int
    title: str
    caption: str
    draw: Callable[[Material], Drawn | None]
