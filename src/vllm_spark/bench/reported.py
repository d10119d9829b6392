"""The figures of the five field reports, each with the cell of the profile field-reports that makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_spark.bench import profiles
from vllm_spark.core import strict_yaml
from vllm_spark.core.types import Document
from vllm_spark.node.bench.records import Cell

FILE = profiles.names()["field-reports"]


@dataclass(frozen=True, slots=True)
class ReportedFigure:
    """A figure of a report and the id of the cell that makes it. `recipe` is empty if the catalogue has none for it."""

    cell: str
    report: str
    recipe: str
    metric: str
    value: Any
    note: str = ""


@dataclass(frozen=True, slots=True)
class FieldReports:
    """The file. `not_measured` has report, figure and why of each figure that no cell makes."""

    cells: tuple[Cell, ...]
    figures: tuple[ReportedFigure, ...]
    not_measured: tuple[Mapping[str, str], ...]


@cache
def load() -> FieldReports:
    """Return the figures of the profile."""
    content: Document = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    rows = [(_cell(row), row) for row in content["cells"]]
    return FieldReports(
        cells=tuple(cell for cell, _ in rows),
        figures=tuple(ReportedFigure(cell["id"], **figure) for cell, row in rows for figure in row.get("figures", [])),
        not_measured=tuple(content["not_measured"]),
    )


def of_recipe(recipe: str) -> dict[tuple[str, str], list[ReportedFigure]]:
    """Return cell and metric -> the figures that were reported of a recipe. Lists by position are left out."""
    found: dict[tuple[str, str], list[ReportedFigure]] = {}
    for one in load().figures:
        if one.recipe == recipe and not isinstance(one.value, Sequence):
            found.setdefault((one.cell, one.metric), []).append(one)
    return found


def _cell(row: Mapping[str, Any]) -> Cell:
    """Return the cell of a row. Raises ValueError for a row of several cells."""
    (cell,) = profiles.cells_of(row)
    return cell
