"""`vllm-spark recipes`: the catalogue as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import rich.console
import rich.table

from vllm_spark.recipe import folders, lockfile
from vllm_spark.sizing import catalogue

PIPE_WIDTH = 150


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
    table = rich.table.Table(*catalogue.COLUMNS, box=None, pad_edge=False)
    for entry in entries:
        table.add_row(*catalogue.cells(entry))
    # A pipe has no width, and rich would truncate the names.
    rich.console.Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
    return 0
