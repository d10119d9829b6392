"""The command line: what can be asked without any host."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_spark import contact, launch, memory, paths, plan, recipe, report, spec
from vllm_spark.refusal import Refusal, RefusedError, message

# Any Spark: a launch for one does not depend on its name.
NOMINAL_HOST = "spark1"


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 1 for a refusal, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="vllm-spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="print the launch script of a recipe, without any host")
    render.add_argument("recipe", help="a name of recipes/, or a file")
    render.add_argument(
        "--facts",
        type=Path,
        help="facts of a box (JSON, as spark_facts gives them): refuse what would not fit",
    )
    render.add_argument("--lock", type=Path, help="lock file that gives the image its digest")
    render.add_argument("--port", type=int, default=8000)
    commands.add_parser("recipes", help="list the recipes")
    shown = commands.add_parser("report", help="print a report of a verification")
    shown.add_argument("file", nargs="?", type=Path, help="default: the newest of reports/")
    check = commands.add_parser("check", help="check recipe files, every fault at once")
    check.add_argument("files", nargs="*", type=Path, help="default: all of recipes/")
    contact.arguments(commands)
    asked = parser.parse_args(words)
    try:
        return {"render": _render, "recipes": _recipes, "report": _report, "check": _check, "contact": contact.run}[
            asked.command
        ](asked)
    except RefusedError as refused:
        print(refused, file=sys.stderr)
    except (OSError, json.JSONDecodeError) as error:
        unread = message(str(error), "a file that can be read", "name another file.", runbook="recipe-refused")
        print(unread, file=sys.stderr)
    return 1


def _render(asked: argparse.Namespace) -> int:
    file = Path(asked.recipe)
    folders = (file.parent,) if file.suffix == ".yml" else (paths.RECIPES,)
    loaded = recipe.load(file.stem if file.suffix == ".yml" else asked.recipe, folders)
    nodes = loaded.document["topology"]["nodes"]
    hosts = tuple(f"spark{number + 1}" for number in range(nodes))
    placed = {"name": loaded.name, "recipe": loaded.name, "hosts": list(hosts), "port": asked.port}
    secrets = dict.fromkeys(loaded.document.get("secrets", []), True)
    inventory = spec.Inventory(
        deployments=[placed],
        sparks=hosts,
        limit=hosts,
        recipe_folders=folders,
        lock_file=asked.lock,
        secrets=secrets,
    )
    found = spec.resolve(inventory, NOMINAL_HOST)
    assert found is not None  # noqa: S101  the one deployment names the one host
    if asked.facts:
        facts = json.loads(asked.facts.read_text(encoding="utf-8"))
        refusals = list(plan.refusals(found, facts))
        if refusals:
            raise RefusedError(refusals)
    print(launch.script(found), end="")
    return 0


def _recipes(asked: argparse.Namespace) -> int:
    del asked
    for name, file in recipe.names([paths.RECIPES]).items():
        document = recipe.read(file).document
        size = document["model"].get("size_bytes")
        locked = "locked" if "digest" in document["image"] else "not locked"
        shown = memory.gib(size) if size else "size unknown"
        print(f"{name}: {document['summary']} ({shown}, vLLM {document['engine']['version']}, {locked})")
    return 0


def _report(asked: argparse.Namespace) -> int:
    file = asked.file or report.newest(paths.REPORTS)
    if file is None:
        raise RefusedError([_no_report()])
    print(report.readable(json.loads(file.read_text(encoding="utf-8"))))
    return 0


def _no_report() -> Refusal:
    return Refusal(
        id="no-report",
        what=f"no report in {paths.REPORTS}",
        expected="one, which deploy and verify write",
        fix="ansible-playbook verify.yml.",
        runbook="engine-failed-to-start",
    )


def _check(asked: argparse.Namespace) -> int:
    refused: list[Refusal] = []
    for file in asked.files or recipe.names([paths.RECIPES]).values():
        try:
            recipe.read(file)
        except RefusedError as error:
            refused += error.refusals
    if refused:
        raise RefusedError(refused)
    return 0


if __name__ == "__main__":
    sys.exit(main())
