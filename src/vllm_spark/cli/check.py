"""`vllm-spark check`: recipe files against their schema, their cross-field rules and the evidence that they name."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench import recipe_evidence
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.recipe import engine_arguments, folders, loader


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("check", help="check recipe files, every fault at once")
    parser.add_argument("files", nargs="*", type=Path, help="default: the site's own and all of recipes/")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read every file. Raises RefusedError with the faults of all files."""
    refusals: list[Refusal] = []
    for file in args.files or loader.names(folders.searched()).values():
        try:
            recipe = loader.read(file)
            refusals += engine_arguments.refusals(recipe.document, ())
            refusals += recipe_evidence.refusals(recipe, file.resolve().parent)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    return 0
