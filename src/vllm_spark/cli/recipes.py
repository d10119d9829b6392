"""`vllm-spark recipes`: the catalogue as a table or as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.table import Table

from vllm_spark.core import table as text_table
from vllm_spark.recipe import folders, lockfile
from vllm_spark.sizing import catalogue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--lock", type=Path, help="lock file of an inventory")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the catalogue."""
    entries = catalogue.entries(folders.searched(), locked=lockfile.read(args.lock))
    if args.json:
        print(json.dumps([entry.to_json() for entry in entries], indent=2))
        return 0
    table = Table(*catalogue.COLUMNS, box=None, pad_edge=False)
    for entry in entries:
        table.add_row(*catalogue.cells(entry))
    text_table.show(table)
    return 0
