"""`vllm-spark bench`: measure a server, and read the evidence of runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_spark.cli import bench_compare, bench_report, bench_run, bench_verdict

# Each module has add_parser(commands), like the modules of cli.main.
COMMANDS = (bench_run, bench_report, bench_compare, bench_verdict)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and its own sub-commands."""
    parser = commands.add_parser("bench", help="measure a server; compare, judge and show the evidence of runs")
    own = parser.add_subparsers(dest="bench_command", required=True)
    for module in COMMANDS:
        module.add_parser(own)


def with_command(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the sub-command that `bench URL` leaves out."""
    if len(argv) > 1 and argv[0] == "bench" and "://" in argv[1]:
        return ["bench", "run", *argv[1:]]
    return list(argv)
