"""`vllm-spark recipe`: write, import and share recipes of a site."""

from __future__ import annotations

import argparse

from vllm_spark.cli import commands
from vllm_spark.cli.commands import Command

COMMANDS = {
    "new": Command("cli.recipe.new", "write the recipe of a model, with its forecast"),
    "import": Command("cli.recipe.import_", "write a recipe from a recipe, script or compose file of others"),
    "export": Command("cli.recipe.export", "print a recipe with its architectures as one file"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of the group."""
    commands.add(parser, COMMANDS, dest="recipe_command", required=True)
