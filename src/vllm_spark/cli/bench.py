"""`vllm-spark bench`: its sub-commands."""

from __future__ import annotations

import argparse

from vllm_spark.cli import bench_report

# Each module has add_parser(commands), which sets the default `run_bench` to its run(args) -> int.
COMMANDS = (bench_report,)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and its own sub-commands."""
    parser = commands.add_parser("bench", help="evidence of benchmarks: its report")
    parser.set_defaults(run=run)
    own = parser.add_subparsers(dest="bench_command", required=True)
    for module in COMMANDS:
        module.add_parser(own)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command of bench. Returns its exit status."""
    status: int = args.run_bench(args)
    return status
