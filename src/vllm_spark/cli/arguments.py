"""Shared CLI arguments for commands that need no host: a recipe and optional fact files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.core import documents
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.types import Facts
from vllm_spark.recipe import folders, loader
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import reference_spark

WRONG_COUNT = register("wrong-count", runbook="recipe-refused")
BAD_FACTS = register("bad-facts", runbook="recipe-refused")

# Above them a forecast takes minutes, and no Spark has the memory.
MOST, MOST_STREAMS = 16 << 20, 1 << 14

# The facts that a plan without a host reads in any case.
NEEDED_FACTS = ("memory", "docker")


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


def add_accepted(parser: argparse.ArgumentParser) -> None:
    """Add `--accept-known-issue`."""
    parser.add_argument("--accept-known-issue", nargs="+", default=[], metavar="ID", help="continue in spite of it")


def add_destination(parser: argparse.ArgumentParser) -> None:
    """Add `--into` and `--replace` of a command that writes a recipe."""
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="where to write; default: recipes beside the inventory"
    )
    parser.add_argument("--replace", action="store_true", help="write over a recipe of this name")


def positive(text: str) -> int:
    """Return a number from 1 to MOST, for `type=` of an argument."""
    number = int(text)
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MOST}")
    return number


def streams(text: str) -> int:
    """Return a number of streams, for `type=` of an argument."""
    number = positive(text)
    if number > MOST_STREAMS:
        raise argparse.ArgumentTypeError(f"{text} is above {MOST_STREAMS}")
    return number


def load_recipe(name: str) -> tuple[Recipe, tuple[Path, ...]]:
    """Load a recipe by name or by file. Returns it with the folders that were searched."""
    file = Path(name)
    if file.suffix == ".yml":
        return loader.load(file.stem, (file.parent,)), (file.parent,)
    return loader.load(name, folders.searched()), folders.searched()


def hosts_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names that a command without hosts uses for the recipe's Sparks, the head first."""
    return reference_spark.HOSTS[: recipe.document["topology"]["nodes"]]


def read_facts(recipe: Recipe, files: Sequence[Path], rank: int = 0) -> list[Facts]:
    """Read the fact files, one per rank. Returns an empty list without files.

    Raises RefusedError if the number of files or the rank does not fit the recipe.
    """
    nodes = recipe.document["topology"]["nodes"]
    if (files and len(files) != nodes) or rank >= nodes:
        raise WRONG_COUNT.error(
            what=f"recipe {recipe.name} is for {nodes} Sparks, and the command has {len(files)} fact files and "
            f"rank {rank}",
            expected="one fact file per Spark or none, the head's first, and a rank below the number of Sparks",
            fix=f"--facts {' '.join(f'{host}.json' for host in hosts_of(recipe))}.",
        )
    return [_facts(file) for file in files]


def _facts(file: Path) -> Facts:
    """Return the facts in a file. Raises RefusedError if it has none."""
    try:
        facts: Facts = documents.read_json(file)
    except DocumentError as error:
        raise _bad_facts(f"{file}: {error.fault.what}", error.fault.expected) from error
    absent = [key for key in NEEDED_FACTS if not isinstance(facts, dict) or not isinstance(facts.get(key), dict)]
    if absent:
        raise _bad_facts(f"{file} has no {', '.join(absent)}", "the facts that the module spark_facts returns")
    return facts


def _bad_facts(what: str, expected: str) -> RefusedError:
    fix = "leave out --facts, or write the file again: `ansible HOST -m vllm_spark.toolkit.spark_facts`."
    return BAD_FACTS.error(what=what, expected=expected, fix=fix)
