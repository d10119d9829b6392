"""`vllm-spark bench constants`: what the owner's Sparks measured, as the file that `plan` reads."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench import own_constants, verdict
from vllm_spark.core import paths
from vllm_spark.sizing import site_constants


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="evidence of a deployment on Sparks")
    parser.add_argument(
        "--into",
        type=Path,
        default=paths.INVENTORY / site_constants.NAME,
        metavar="CONSTANTS",
        help="the file; default: beside the inventory",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print what it has. Returns 1 if nothing of the evidence can be used."""
    runs, lines = own_constants.read_runs(args.files)
    found = list(own_constants.servers(runs, verdict.recipe_document))
    used = any(one.entry for one in found)
    lines += own_constants.write(args.into, found)
    print("\n".join(lines if used else [*lines, "no cell of these files gives a constant"]))
    return 0 if used else 1
