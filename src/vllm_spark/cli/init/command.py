"""`vllm-spark init`: the command line. inventory.py does the work."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.cli.contact import command
from vllm_spark.sizing import uses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    here = "localhost: this machine; default: this machine if it is a Spark, else those that answer mDNS"
    parser.add_argument("hosts", nargs="*", metavar="[USER@]HOST", help=f"{command.HOST}; {here}")
    words = [use.word for use in uses.USES]
    parser.add_argument("--use", choices=words, help=f"what the server is for: {', '.join(u.name for u in uses.USES)}")
    parser.add_argument(
        "--recipe",
        action="append",
        metavar="NAME",
        help="more than once: several servers on each Spark; default: the one with the highest reported speed, of "
        "those that fit",
    )
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="where to write hosts.yml; default: inventories/site")
    parser.add_argument("-y", "--yes", action="store_true", help="ask nothing, and take each default")
    command.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write an inventory. Returns 130 after Ctrl-C, which leaves no file. Raises RefusedError."""
    from vllm_spark.cli.init import inventory  # noqa: PLC0415  paramiko takes 0.4 s, which only this needs

    return inventory.run(args)
