"""`vllm-spark check`: recipe files against their schema, their cross-field rules, the engine's flags and variables, the
known issues and the evidence that they name."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench import recipe_evidence
from vllm_spark.cli import arguments
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.recipe import folders, known_issues, loader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("files", nargs="*", type=Path, help="default: the site's own and all of recipes/")
    arguments.add_accepted(parser)


def run(args: argparse.Namespace) -> int:
    """Read every file and print its warnings. Raises RefusedError with the faults of all files."""
    refusals: list[Refusal] = []
    warned: dict[str, list[str]] = {}
    for file in args.files or loader.names(folders.searched()).values():
        try:
            recipe = loader.read(file)
            subject = known_issues.of_closed(recipe.document)
            refusals += known_issues.refusals(subject, args.accept_known_issue)
            refusals += recipe_evidence.refusals(recipe, file.resolve().parent)
            for note in known_issues.notes(subject, args.accept_known_issue):
                warned.setdefault(note, []).append(recipe.name)
        except RefusedError as error:
            refusals += error.refusals
    for note, names in warned.items():
        print(f"{', '.join(names)}: warning: {note}")
    if refusals:
        raise RefusedError(refusals)
    return 0
