"""`vllm-spark recipe`: write, import and share recipes of a site."""

from __future__ import annotations

import argparse
import sys

from vllm_spark.cli.recipe import export, import_, new

# Each module has add_parser(commands), as the modules of cli.main.COMMANDS.
COMMANDS = (new, import_, export)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command group."""
    parser = commands.add_parser("recipe", help="write a recipe of any model, import one, share one as one file")
    parser.set_defaults(run=run, recipe_parser=parser)
    group = parser.add_subparsers(dest="recipe_command")
    for module in COMMANDS:
        module.add_parser(group)


def run(args: argparse.Namespace) -> int:
    """Print the usage of the group without a sub-command. Returns 2."""
    args.recipe_parser.print_usage(sys.stderr)
    return 2
