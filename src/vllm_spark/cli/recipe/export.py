"""`vllm-spark recipe export`: a recipe with its architectures as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.authoring import recipe_file, recipe_text, sharing
from vllm_spark.core import documents
from vllm_spark.recipe import folders, loader


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("export", help="print a recipe with its architectures as one file")
    parser.add_argument("recipe", help="a name, or a file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the file. Raises RefusedError if the recipe needs other files."""
    file = Path(args.recipe)
    if file.suffix == ".yml":
        recipe = loader.read(file)
    else:
        recipe = loader.load(args.recipe, folders.searched())
        file = loader.names(folders.searched())[args.recipe]
    document = sharing.shared(recipe, documents.read_yaml(file))
    print(recipe_text.text(document, recipe_file.SCHEMA), end="")
    return 0
