"""lab/bench/field-reports.md: the tables of the field reports, each figure with the cell that makes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from lab.pages.markdown import table
from vllm_spark.bench import reported
from vllm_spark.bench.reported import ReportedFigure
from vllm_spark.node.bench.records import UNITS

HEAD = """\
# The figures of the field reports, and the cells that make them

`make docs` writes this page from the profile `field-reports` (`src/vllm_spark/bench/profiles/field-reports.yml`), which
measures its cells; do not edit it. Tables and rows of a report are numbered in its order; `text` is a figure outside of
a table. [bench.md](../../docs/reference/bench.md) defines the metrics.

The reports measured their own prompts with other tools. A cell has the lengths and streams of the report and the
toolkit's texts, so a speed with a drafter may differ by the text alone.
"""
REST = """\
## Figures that no cell makes
"""
NUMBER = re.compile(r"\d+")


def text() -> str:
    """Return the page."""
    reports = reported.load()
    ordered = sorted(reports.figures, key=_order)
    parts = [HEAD.rstrip()]
    for report, of_report in groupby(ordered, key=lambda figure: figure.report[:3]):
        parts.append(f"## Field report {report}")
        for place, figures in groupby(of_report, key=_table):
            parts += [
                f"### {report}, {place}",
                table(("row", "recipe", "metric", "reported", "cell", "note"), _rows(figures)),
            ]
    parts.append(REST.rstrip())
    rest = ((entry["report"], entry["figure"], entry["why"]) for entry in reports.not_measured)
    parts.append(table(("place", "figure", "reason"), rest))
    return "\n\n".join(parts) + "\n"


def _table(figure: ReportedFigure) -> str:
    """Return `table N` or `text`."""
    place = figure.report.split()
    return " ".join(place[1:3]) if "table" in place else "text"


def _order(figure: ReportedFigure) -> tuple[str, bool, list[int]]:
    """Return the place of a figure in the page: by report, tables before text, by table and row."""
    return figure.report[:3], "text" in figure.report, [int(number) for number in NUMBER.findall(figure.report[3:])]


def _rows(figures: Iterable[ReportedFigure]) -> Iterator[tuple[str, ...]]:
    for figure in figures:
        row = figure.report.partition(" row ")[2] or "—"
        recipe = figure.recipe or "—"
        yield row, recipe, figure.metric, _value(figure.metric, figure.value), f"`{figure.cell}`", figure.note or "—"


def _value(metric: str, value: Any) -> str:
    unit = "" if UNITS[metric] == "1" else f" {UNITS[metric]}"
    values = value if isinstance(value, list) else [value]
    return ", ".join(f"{each}" for each in values) + unit
