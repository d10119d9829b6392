"""What commands that ask about a recipe without a host are given: the recipe, and facts of boxes in files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import reference_spark

WRONG_COUNT = register("wrong-count", runbook="recipe-refused")


def add_arguments(command: argparse.ArgumentParser, without: str) -> None:
    """Add `recipe` and `--facts`. `without` says what happens where no facts are given."""
    command.add_argument("recipe", help="a name of recipes/, or a file")
    command.add_argument(
        "--facts",
        nargs="+",
        type=Path,
        default=[],
        help=f"facts of each box, the head's first (JSON, as spark_facts gives them); default: {without}",
    )


def load_recipe(name: str) -> tuple[Recipe, tuple[Path, ...]]:
    """(the recipe of a name or a file, the folders that it was looked for in)."""
    file = Path(name)
    if file.suffix == ".yml":
        return loader.load(file.stem, (file.parent,)), (file.parent,)
    return loader.load(name), (paths.RECIPES,)


def read_facts(found: Recipe, files: Sequence[Path], rank: int = 0) -> list[dict[str, Any]]:
    """The facts of each box, none where no file was given. Raises RefusedError where their number, or the rank, does
    not fit the recipe."""
    nodes = found.document["topology"]["nodes"]
    if (files and len(files) != nodes) or rank >= nodes:
        raise RefusedError([_wrong_count(found.name, nodes, len(files), rank)])
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _wrong_count(name: str, nodes: int, files: int, rank: int) -> Refusal:
    return WRONG_COUNT(
        what=f"recipe {name} is for {nodes} Sparks, and this call has {files} files of facts and rank {rank}",
        expected="facts of each or of none, the head's first, and a rank below the number of Sparks",
        fix=f"--facts {' '.join(f'{host}.json' for host in reference_spark.HOSTS[:nodes])}.",
    )
