"""`vllm-spark recipe export`: a recipe with its architectures as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.authoring import recipe_file, recipe_text, sharing
from vllm_spark.core import documents
from vllm_spark.recipe import folders, loader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("recipe", help="a name, or a file")


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
