"""`vllm-spark bench compare`: two evidence files, cell by cell."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import rich.box
import rich.console
import rich.table

from vllm_spark.bench import comparison, evidence
from vllm_spark.bench.comparison import Row

COLUMNS = ("cell", "figure", "A", "B", "B / A", "band", "")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("compare", help="compare two runs cell by cell")
    parser.add_argument("baseline", type=Path, metavar="A", help="evidence file of the run before")
    parser.add_argument("other", type=Path, metavar="B", help="evidence file of the run to compare with it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what differs between the keys, then the table. Returns 1 if a figure of B is worse."""
    before, after = evidence.load(args.baseline), evidence.load(args.other)
    rows = list(comparison.rows(before, after))
    changes = comparison.changes(before.record["key"], after.record["key"])
    if args.json:
        print(json.dumps({"changed": changes, "rows": [row.to_json() for row in rows]}, indent=2))
    else:
        for name, values in changes.items():
            print(f"{name} differs: {' -> '.join(value or 'unknown' for value in values)}")
        print_rows(rows)
    return int(any(row.state == "worse" for row in rows))


def print_rows(rows: list[Row]) -> None:
    """Print a comparison as a table."""
    table = rich.table.Table(*COLUMNS, box=rich.box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*cells(row))
    rich.console.Console().print(table)


def cells(row: Row) -> list[str]:
    """Return the cells of a row of the table."""
    values = ["—" if value is None else f"{value:.4g}" for value in (row.baseline, row.other)]
    ratio = "—" if row.ratio is None else f"{row.ratio:.3f}"
    band = "—" if row.band is None else f"±{row.band.width:.1%}"
    return [row.cell, row.metric, *values, ratio, band, row.state]
