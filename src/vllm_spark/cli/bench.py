"""`vllm-spark bench`: its sub-commands."""

from __future__ import annotations

import argparse

from vllm_spark.cli import bench_report

# Each module has add_parser(commands), like the modules of cli.main.
COMMANDS = (bench_report,)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and its own sub-commands."""
    parser = commands.add_parser("bench", help="evidence of benchmarks: its report")
    own = parser.add_subparsers(dest="bench_command", required=True)
    for module in COMMANDS:
        module.add_parser(own)
