"""Shared CLI arguments for commands that need no host: a recipe and optional fact files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.types import Facts
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import reference_spark

WRONG_COUNT = register("wrong-count", runbook="recipe-refused")


def add_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `recipe` and `--facts`. `default` is the part of the help text that says what happens without facts."""
    parser.add_argument("recipe", help="a name in recipes/, or a file")
    parser.add_argument(
        "--facts",
        nargs="+",
        type=Path,
        default=[],
        help=f"facts of each Spark, the head's first (JSON, as spark_facts returns them); default: {default}",
    )


def load_recipe(name: str) -> tuple[Recipe, tuple[Path, ...]]:
    """Load a recipe by name or by file. Returns it with the folders that were searched."""
    file = Path(name)
    if file.suffix == ".yml":
        return loader.load(file.stem, (file.parent,)), (file.parent,)
    return loader.load(name), (paths.RECIPES,)


def hosts_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names that a command without hosts uses for the recipe's Sparks, the head first."""
    return reference_spark.HOSTS[: recipe.document["topology"]["nodes"]]


def read_facts(recipe: Recipe, files: Sequence[Path], rank: int = 0) -> list[Facts]:
    """Read the fact files, one per rank. Returns an empty list without files.

    Raises RefusedError if the number of files or the rank does not fit the recipe.
    """
    nodes = recipe.document["topology"]["nodes"]
    if (files and len(files) != nodes) or rank >= nodes:
        raise RefusedError(
            [
                WRONG_COUNT(
                    what=f"recipe {recipe.name} is for {nodes} Sparks, and the command has {len(files)} fact files and "
                    f"rank {rank}",
                    expected="one fact file per Spark or none, the head's first, and a rank below the number of Sparks",
                    fix=f"--facts {' '.join(f'{host}.json' for host in hosts_of(recipe))}.",
                )
            ]
        )
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
