"""The table of compared figures, for a terminal or a pipe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table

from vllm_spark.bench.compare import Row
from vllm_spark.core import table as text_table

COLUMNS = ("cell", "metric", "unit", "A", "B", "ratio", "band", "judgement", "note")
PIPE_WIDTH = 160
UNKNOWN = "—"
# Behind a metric that its cell is measured for.
LEADING = " *"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the switch for the rows that nothing judges."""
    parser.add_argument("-v", "--verbose", action="store_true", help="also print the figures that are not judged")


def shown(rows: Sequence[Row], args: argparse.Namespace) -> list[Row]:
    """Return the rows to print: those of figures that are judged, or all."""
    return [row for row in rows if args.verbose or row.judgement != "shown"]


def show(title: str, rows: Sequence[Row], old: str = "A", new: str = "B") -> None:
    """Print the rows with a title. Nothing is printed without rows."""
    if not rows:
        return
    names = [{"A": old, "B": new}.get(name, name) for name in COLUMNS]
    grid = Table(*names, box=None, pad_edge=False, title=title, title_justify="left")
    for row in rows:
        grid.add_row(*cells(row))
    text_table.show(grid, PIPE_WIDTH)


def cells(row: Row) -> list[str]:
    """Return the texts of a row."""
    band = f"±{row.band:.1%}" if row.band else UNKNOWN
    ratio = f"{row.ratio:.3f}" if row.ratio is not None else UNKNOWN
    metric = f"{row.metric}{LEADING}" if row.leading else row.metric
    return [row.cell, metric, row.unit, _text(row.old), _text(row.new), ratio, band, row.judgement, row.note]


def _text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"
