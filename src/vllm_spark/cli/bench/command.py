"""`vllm-spark bench`: judge, compare and export the evidence of benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_spark.cli.bench import compare, export, verdict

# Each module has add_parser(commands), as the modules of cli.main.COMMANDS.
COMMANDS = (compare, verdict, export)

NAME = "bench"
# The sub-command that measures a URL. Its name is not typed: `vllm-spark bench http://…`.
LIVE = "url"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command group."""
    parser = commands.add_parser(NAME, help="compare, judge and export benchmarks")
    group = parser.add_subparsers(dest="bench_command", required=True)
    for module in COMMANDS:
        module.add_parser(group)


def with_url(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the name of the live sub-command before a URL, which stands in its place."""
    words = list(argv)
    if words[:1] == [NAME] and "://" in "".join(words[1:2]):
        words.insert(1, LIVE)
    return words
