"""`vllm-spark bench`: measure a server; show, compare, judge and export the evidence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from vllm_spark.cli.bench import compare, export, report, url, verdict
from vllm_spark.cli.bench.status import REFUSED

# Each module has add_parser(commands), as the modules of cli.main.COMMANDS.
COMMANDS = (url, report, compare, verdict, export)

NAME = "bench"
# The sub-command that measures a URL. Its name is not typed: `vllm-spark bench http://…`.
LIVE = "url"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command group."""
    parser = commands.add_parser(NAME, help="measure a server; show, compare, judge and export the evidence")
    parser.set_defaults(run=run, bench_parser=parser)
    group = parser.add_subparsers(dest="bench_command")
    for module in COMMANDS:
        module.add_parser(group)


def run(args: argparse.Namespace) -> int:
    """Print the usage of the group without a sub-command. Returns 2."""
    args.bench_parser.print_usage(sys.stderr)
    return REFUSED


def with_url(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the name of the live sub-command before a URL, which stands in its place."""
    words = list(argv)
    if words[:1] == [NAME] and "://" in "".join(words[1:2]):
        words.insert(1, LIVE)
    return words
