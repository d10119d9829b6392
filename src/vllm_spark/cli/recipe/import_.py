"""`vllm-spark recipe import`: a recipe of sparkrun, or one that `vllm-spark recipe export` wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_spark.authoring import composing, engine_choice, recipe_file, recipe_text, sharing, sparkrun
from vllm_spark.authoring.model_facts import Question
from vllm_spark.cli import arguments
from vllm_spark.cli.recipe import like
from vllm_spark.core import documents, paths, text
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.run_command import typed
from vllm_spark.recipe import folders, known_issues, loader
from vllm_spark.sizing import forecast

# Any vLLM: a recipe of sparkrun names an image and not a version.
ANY_ENGINE = {"name": "sparkrun", "engine": {"since": "0.0.0"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", help="name of the recipe; default: the file's")
    parser.add_argument("--like", metavar="RECIPE", help="take image, engine and runtime from this recipe")
    arguments.add_destination(parser)


def run(args: argparse.Namespace) -> int:
    """Write the recipe and print what was left out. Raises RefusedError; then nothing is written."""
    document = _read(args.file)
    into = args.into or folders.of_site()
    if sparkrun.is_sparkrun(document) and "schema_version" not in document:
        return _of_sparkrun(args, document, into)
    if not isinstance(document.get("name"), str):
        raise RefusedError([_bad(args.file, "no `name` in it", "a file of `vllm-spark recipe export`")])
    recipe, architectures = sharing.parted(document)
    files = _texts(args.name, recipe, architectures)
    placed = recipe_file.place(files, into, replace=args.replace, source=args.file)
    print("\n".join(f"written: {file}" for file in placed))
    # A deploy refuses them too. Here they are seen by the one who took the file from somebody else.
    for issue in known_issues.matching_issues(known_issues.of_closed(loader.read(placed[0]).document)):
        if issue.level == "refuse":
            print(f"  refused by a deploy: {issue.what}; {issue.instead} ({issue.id})")
    return 0


def _read(file: Path) -> Any:
    try:
        document = documents.read_yaml(file)
    except DocumentError as error:
        raise RefusedError([_bad(file, error.fault.what, error.fault.expected)]) from error
    if not isinstance(document, dict) or not ({"model", "name"} & set(document)):
        raise RefusedError(
            [_bad(file, "no `model` in it", "a recipe of sparkrun, or a file of `vllm-spark recipe export`")]
        )
    return document


def _bad(file: Path, what: str, expected: str) -> Any:
    return sparkrun.BAD_IMPORT(what=f"{file}: {what}", expected=expected, fix="name another file.")


def _texts(
    name: str | None, recipe: dict[str, Any], architectures: dict[str, Any], questions: Sequence[Question] = ()
) -> dict[str, str]:
    named = {**recipe, "name": name} if name else recipe
    files = {f"{named['name']}.yml": recipe_text.text(named, recipe_file.SCHEMA, questions)}
    for key, one in architectures.items():
        files[f"architectures/{key}.yml"] = recipe_text.text(one, recipe_file.ARCHITECTURE_SCHEMA)
    return files


def _of_sparkrun(args: argparse.Namespace, document: dict[str, Any], into: Path) -> int:
    name = args.name or composing.recipe_name(args.file.stem)
    catalogue = forecast.catalogue([paths.RECIPES])
    base = like.base(args.like) or engine_choice.choose(str(args.file), ANY_ENGINE, catalogue)
    imported = sparkrun.convert(document, name, base, args.file)
    recipe = imported.recipe
    files = recipe_file.place(
        _texts(None, recipe, {}, imported.questions), into, replace=args.replace, source=args.file
    )
    print(f"{name}: {recipe['model']['repository']}, vLLM {recipe['engine']['version']}")
    print(f"  Sparks: {recipe['topology']['nodes']}")
    for line in imported.left_out:
        print(f"  left out: {text.printable(typed(' '.join(line.split())))}")
    for question in imported.questions:
        print(f"  open: {question}")
    if "architecture" not in recipe["model"]:
        print("  forecast: unknown, because sparkrun's recipes name no architecture")
        print(f"  `vllm-spark recipe new {recipe['model']['repository']}` writes a second recipe, which has one")
    print("\n".join(f"written: {file}" for file in files))
    if "revision" in recipe["model"]:
        print(f"Next: vllm-spark check {files[0]}")
    else:
        print(typed(f"Next: ansible-playbook lock.yml -e vllm_lock_recipes={name}"))
        print("It pins the model's commit, which a deploy needs.")
    return 0
