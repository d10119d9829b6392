"""The command line: what can be asked without any host."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_spark import contact, launch, memory, nominal, paths, plan, ranks, recipe, report, spec
from vllm_spark.refusal import Refusal, RefusedError, message


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 1 for a refusal, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="vllm-spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="print the launch script of a recipe, without any host")
    render.add_argument("recipe", help="a name of recipes/, or a file")
    render.add_argument(
        "--facts",
        nargs="+",
        type=Path,
        default=[],
        help="facts of each box, the head's first (JSON, as spark_facts gives them): refuse what would not fit",
    )
    render.add_argument("--rank", type=int, default=0, choices=(0, 1), help="of a recipe for two Sparks; 0 is the head")
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
    hosts = nominal.HOSTS[:nodes]
    given = [json.loads(file.read_text(encoding="utf-8")) for file in asked.facts]
    if (given and len(given) != nodes) or asked.rank >= nodes:
        raise RefusedError([_wrong_count(loaded.name, nodes, len(given), asked.rank)])
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
    specs = {host: found for host in hosts if (found := spec.resolve(inventory, host))}
    facts = dict(zip(hosts, given, strict=True)) if given else {host: _nominal(host) for host in hosts}
    refusals = [refusal for host in hosts for refusal in plan.refusals(specs[host], facts[host])] if given else []
    if refusals:
        raise RefusedError(refusals)
    print(launch.script(ranks.join(specs, facts)[hosts[asked.rank]]), end="")
    return 0


def _nominal(host: str) -> dict[str, Any]:
    """Facts of a box that nobody was asked about: what a launch takes from them."""
    return {"fabric": nominal.fabric(host), "images": {}}


def _wrong_count(name: str, nodes: int, files: int, rank: int) -> Refusal:
    return Refusal(
        id="wrong-count",
        what=f"recipe {name} is for {nodes} Sparks, and this call has {files} files of facts and rank {rank}",
        expected="facts of each or of none, the head's first, and a rank below the number of Sparks",
        fix=f"--facts {' '.join(f'{host}.json' for host in nominal.HOSTS[:nodes])}.",
        runbook="recipe-refused",
    )


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
    found = [json.loads(asked.file.read_text(encoding="utf-8"))] if asked.file else report.latest(paths.REPORTS)
    if not found:
        raise RefusedError([_no_report()])
    # The head's last, because it ends with what to type next.
    for document in reversed(found):
        print(report.readable(document))
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
