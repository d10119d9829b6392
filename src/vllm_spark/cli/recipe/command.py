"""`vllm-spark recipe`: write, import and share recipes of a site."""

from __future__ import annotations

import argparse
import sys

from vllm_spark.cli import commands
from vllm_spark.cli.commands import Command

COMMANDS = {
    "new": Command("cli.recipe.new", "write the recipe of a model, with its forecast"),
    "import": Command("cli.recipe.import_", "write a recipe from sparkrun's, or from an exported file"),
    "export": Command("cli.recipe.export", "print a recipe with its architectures as one file"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of the group."""
    parser.set_defaults(recipe_parser=parser)
    commands.add(parser, COMMANDS, dest="recipe_command")


def run(args: argparse.Namespace) -> int:
    """Print the usage of the group without a sub-command. Returns 2."""
    args.recipe_parser.print_usage(sys.stderr)
    return 2
