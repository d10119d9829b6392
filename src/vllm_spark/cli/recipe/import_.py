"""`vllm-spark recipe import`: the servers of a file of others, or a recipe that `vllm-spark recipe export` wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from vllm_spark.authoring import composing, engine_choice, imported, launch_file, recipe_file, recipe_text, sharing
from vllm_spark.authoring.imported import Imported
from vllm_spark.authoring.model_facts import Question
from vllm_spark.cli import arguments
from vllm_spark.cli.recipe import like
from vllm_spark.core import documents, paths, text
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.core.run_command import typed
from vllm_spark.core.types import Document
from vllm_spark.recipe import folders, known_issues, loader
from vllm_spark.sizing import forecast

# Names of files that say nothing of a server.
EVERYBODYS = {"recipe", "compose", "docker-compose"}
# Any vLLM: a file that names no image names no version either.
ANY_ENGINE = {"name": "import", "engine": {"since": "0.0.0"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "file", type=Path, help="a recipe of NVIDIA's catalogue, eugr or sparkrun, a script, a compose file"
    )
    parser.add_argument("--name", help="name of the recipe; default: the file's")
    parser.add_argument(
        "--as", dest="model", metavar="OWNER/NAME", help="repository of a model that the file has as a path"
    )
    parser.add_argument("--like", metavar="RECIPE", help="take image, engine and runtime from this recipe")
    arguments.add_destination(parser)


def run(args: argparse.Namespace) -> int:
    """Write the recipes and print what was left out. Raises RefusedError; then nothing is written."""
    into = args.into or folders.of_site()
    ours = _exported(args.file)
    if ours is None:
        return _of_others(args, into)
    recipe, architectures = sharing.parted(ours)
    files = _texts(args.name, recipe, architectures)
    placed = recipe_file.place(files, into, replace=args.replace, source=args.file)
    print("\n".join(f"written: {file}" for file in placed))
    # A deploy refuses them too. Here they are seen by the one who took the file from somebody else.
    for issue in known_issues.matching_issues(known_issues.of_closed(loader.read(placed[0]).document)):
        if issue.level == "refuse":
            print(f"  refused by a deploy: {issue.what}; {issue.instead} ({issue.id})")
    return 0


def _exported(file: Path) -> Any:
    """Return the document of a recipe of ours, None for another file. Its faults are told by the one who reads it."""
    try:
        document = documents.read_yaml(file)
    except DocumentError:
        return None
    ours = (
        isinstance(document, dict) and isinstance(document.get("name"), str) and not launch_file.FOREIGN & {*document}
    )
    return document if ours else None


def _texts(
    name: str | None, recipe: dict[str, Any], architectures: dict[str, Any], questions: Sequence[Question] = ()
) -> dict[str, str]:
    named = {**recipe, "name": name} if name else recipe
    files = {f"{named['name']}.yml": recipe_text.text(named, recipe_file.SCHEMA, questions)}
    for key, one in architectures.items():
        files[f"architectures/{key}.yml"] = recipe_text.text(one, recipe_file.ARCHITECTURE_SCHEMA)
    return files


@cache
def _catalogue() -> list[Document]:
    return [loader.load(name).document for name in loader.names([paths.RECIPES])]


def _of_others(args: argparse.Namespace, into: Path) -> int:
    """Write a recipe for each server of the file. Of several, one that is refused does not stop the rest."""
    launches, others = launch_file.read(args.file)
    catalogue = _catalogue()
    base = like.base(args.like) or engine_choice.choose(str(args.file), ANY_ENGINE, catalogue)
    stem, written = args.name or composing.recipe_name(args.file.stem), 0
    refused: list[Refusal] = []
    for launch in launches:
        own = composing.recipe_name(
            launch.name or next((word for word in launch.words if not word.startswith("-")), "")
        )
        name = f"{stem}-{own}"[: composing.NAME_CHARACTERS].strip("-.") if len(launches) > 1 else stem
        name = args.name or own if name in EVERYBODYS else name
        given = replace(launch, model=args.model or launch.model, what=_source(args.file, launch.what))
        try:
            one = imported.convert(given, name, base, catalogue, args.file)
            files = _texts(None, one.recipe, {}, one.questions)
            _print(name, one, recipe_file.place(files, into, replace=args.replace, source=args.file))
        except RefusedError as error:
            refused += error.refusals
        else:
            written += 1
    for line in others:
        print(f"not imported: {text.printable(line)}")
    if not written:
        raise RefusedError(refused)
    for refusal in refused:
        print(f"not imported: {refusal}")
    return 0


def _source(file: Path, note: str) -> str:
    """Return the source of a recipe: the file by its checksum, and the commit of the checkout in which it lies."""
    commit = _commit(file.resolve().parent)
    where = f", of the checkout at {commit}" if commit else ""
    what = f": {text.one_line(note)}" if note else ""
    return f"{text.one_line(file.name)} (sha256 {sha256(file.read_bytes()).hexdigest()}){where}{what}"


def _commit(folder: Path) -> str:
    """Return the commit that is checked out around a folder; empty outside of a checkout. Git itself is not called,
    because the configuration of a stranger's checkout may run programs."""
    for parent in (folder, *folder.parents):
        head = parent / ".git" / "HEAD"
        if head.is_file():
            content = head.read_text(encoding="utf-8", errors="replace").strip()
            ref = head.parent / content.removeprefix("ref: ")
            return content if not content.startswith("ref: ") else ref.read_text().strip() if ref.is_file() else ""
    return ""


def _print(name: str, one: Imported, files: Sequence[Path]) -> None:
    recipe = one.recipe
    image = recipe["image"]
    pin = image["digest"][:19] if "digest" in image else "without a digest"
    print(f"{name}: {recipe['model']['repository']}, vLLM {recipe['engine']['version']}")
    print(f"  image: {image['repository']}:{image['tag']}, {pin}")
    nodes = recipe["topology"]["nodes"]
    print(f"  Sparks: {nodes}{', behind a switch' * (nodes > composing.PAIR)}")
    for line in one.left_out:
        print(f"  left out: {text.printable(typed(' '.join(line.split())))}")
    for question in one.questions:
        print(f"  open: {question}")
    if one.known:
        print(f"  the catalogue has {one.known['name']} for this repository: {_evidence(one.known)}")
    elif "architecture" not in recipe["model"]:
        print("  forecast: unknown, because the file names no architecture")
        print(f"  `{forecast.new_recipe(recipe)}` writes a second recipe, which has one")
    print("\n".join(f"written: {file}" for file in files))
    missing = [what for what, block in (("the image's digest", image),) if "digest" not in block]
    missing += ["the model's commit"] * ("revision" not in recipe["model"])
    missing += ["the drafter's commit"] * ("revision" not in recipe.get("drafter", {"revision": ""}))
    if missing:
        print(typed(f"Next: ansible-playbook lock.yml -e vllm_lock_recipes={name}"))
        print(f"It pins {' and '.join(missing)}, which a deploy needs.")
    else:
        print(f"Next: vllm-spark check {files[0]}")


def _evidence(known: Document) -> str:
    """Return what is on record of a recipe of the catalogue."""
    figures = [
        f"{one['metric']} {one['value']} {one['unit']}, {one['load']} ({one['source']})"
        for one in known.get("expected", ())
    ]
    runs = len(known.get("evidence", ()))
    return "; ".join([*figures[:1], f"{runs} entries of evidence" if runs else "no evidence of a run"])
