"""The figures of the five field reports (field_reports.yml), each with the cell of the bench that makes it.

`python -m lab.bench.field_reports [RECIPE] >src/vllm_spark/bench/profiles/field-reports.yml` writes a profile that
measures the cells again: those of one recipe, or all. `-e vllm_bench_profile=field-reports` then runs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.bench import profiles
from vllm_spark.core import strict_yaml
from vllm_spark.core.types import Document
from vllm_spark.node.bench.records import Cell

FILE = Path(__file__).with_name("field_reports.yml")
PROFILE = "field-reports"


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
    """Return the content of the file."""
    document = _document()
    rows = [(_cell(row), row) for row in document["cells"]]
    return FieldReports(
        cells=tuple(cell for cell, _ in rows),
        figures=tuple(ReportedFigure(cell["id"], **figure) for cell, row in rows for figure in row.get("figures", [])),
        not_measured=tuple(document["not_measured"]),
    )


def profile(recipe: str = "") -> dict[str, Any]:
    """Return the document of a profile with the cells whose figures were measured with a recipe; all without one.
    Raises ValueError if no figure was."""
    document = _document()
    rows = [
        {key: value for key, value in row.items() if key != "figures"}
        for row in document["cells"]
        if not recipe or any(figure["recipe"] == recipe for figure in row.get("figures", []))
    ]
    if not rows:
        raise ValueError(f"no field report has a figure of {recipe}")
    return {key: document[key] for key in ("name", "summary", "source", "rules")} | {"cells": rows}


def _document() -> Document:
    document: Document = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return document


def _cell(row: Mapping[str, Any]) -> Cell:
    """Return the cell of a row. Raises ValueError for a row of several cells."""
    (cell,) = profiles.cells_of(row)
    return cell


def main() -> None:
    """Print the profile."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.field_reports", description=__doc__)
    parser.add_argument("recipe", nargs="?", default="", help="only the cells of this recipe")
    print("---")
    yaml.safe_dump(profile(parser.parse_args().recipe), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
