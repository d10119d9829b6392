"""The command line: what can be asked without any host."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.console
import rich.table

from vllm_spark.cli import arguments, contact
from vllm_spark.cli import plan as cli_plan
from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.deploy import launch, ranks
from vllm_spark.docs import pages
from vllm_spark.doctor import command
from vllm_spark.inventory import spec
from vllm_spark.preflight import checks
from vllm_spark.recipe import loader, lockfile
from vllm_spark.sizing import catalogue, reference_spark
from vllm_spark.verify import report

RECIPE_REFUSED = register("recipe-refused", runbook="recipe-refused")
NO_REPORT = register("no-report", runbook="engine-failed-to-start")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. Exit status 1 for a refusal, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="vllm-spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="print the launch script of a recipe, without any host")
    arguments.add_arguments(render, "nothing is refused")
    render.add_argument("--rank", type=int, default=0, choices=(0, 1), help="of a recipe for two Sparks; 0 is the head")
    render.add_argument("--lock", type=Path, help="lock file that gives the image its digest")
    render.add_argument("--port", type=int, default=8000)
    listed = commands.add_parser("recipes", help="list the recipes: size, memory, speed, engine, pinned or not")
    listed.add_argument("--lock", type=Path, help="lock file of an inventory")
    listed.add_argument("--json", action="store_true", help="for programs")
    shown = commands.add_parser("report", help="print a report of a verification")
    shown.add_argument("file", nargs="?", type=Path, help="default: the newest of reports/")
    check = commands.add_parser("check", help="check recipe files, every fault at once")
    check.add_argument("files", nargs="*", type=Path, help="default: all of recipes/")
    contact.add_parser(commands)
    cli_plan.add_parser(commands)
    command.add_parser(commands)
    pages.add_parser(commands)
    call = parser.parse_args(words)
    try:
        status = {
            "render": _render,
            "recipes": _recipes,
            "report": _report,
            "check": _check,
            "contact": contact.run,
            "plan": cli_plan.run,
            "doctor": command.run,
            "docs": pages.run,
        }[call.command](call)
        sys.stdout.flush()
        return status
    except RefusedError as refused:
        print(refused, file=sys.stderr)
    except BrokenPipeError:
        # `| head` has read enough. What is left in the buffer would fail once more as Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, json.JSONDecodeError) as error:
        unread = str(
            RECIPE_REFUSED(
                what=str(error),
                expected="a file that can be read",
                fix="name another file.",
            )
        )
        print(unread, file=sys.stderr)
    return 1


def _render(call: argparse.Namespace) -> int:
    loaded, folders = arguments.load_recipe(call.recipe)
    given = arguments.read_facts(loaded, call.facts, call.rank)
    hosts = reference_spark.HOSTS[: loaded.document["topology"]["nodes"]]
    placed = {"name": loaded.name, "recipe": loaded.name, "hosts": list(hosts), "port": call.port}
    secrets = dict.fromkeys(loaded.document.get("secrets", []), True)
    inventory = spec.Inventory(
        deployments=[placed],
        sparks=hosts,
        limit=hosts,
        recipe_folders=folders,
        lock_file=call.lock,
        secrets=secrets,
    )
    specs = {host: found for host in hosts if (found := spec.resolve(inventory, host))}
    facts = dict(zip(hosts, given, strict=True)) if given else {host: _nominal(host) for host in hosts}
    refusals = [refusal for host in hosts for refusal in checks.refusals(specs[host], facts[host])] if given else []
    if refusals:
        raise RefusedError(refusals)
    print(launch.script(ranks.join(specs, facts)[hosts[call.rank]]), end="")
    return 0


def _nominal(host: str) -> dict[str, Any]:
    """Facts of a box that nobody was asked about: what a launch takes from them."""
    return {"fabric": reference_spark.fabric(host), "images": {}}


def _recipes(call: argparse.Namespace) -> int:
    found = catalogue.entries(locked=lockfile.read(call.lock))
    if call.json:
        print(json.dumps([entry.to_json() for entry in found], indent=2))
        return 0
    table = rich.table.Table(*catalogue.COLUMNS, box=None, pad_edge=False)
    for entry in found:
        table.add_row(*catalogue.cells(entry))
    # A pipe has no width of its own, and a cut name is no name.
    rich.console.Console(width=None if sys.stdout.isatty() else 140).print(table)
    return 0


def _report(call: argparse.Namespace) -> int:
    found = [json.loads(call.file.read_text(encoding="utf-8"))] if call.file else report.latest(paths.REPORTS)
    if not found:
        raise RefusedError([_no_report()])
    # The head's last, because it ends with what to type next.
    for document in reversed(found):
        print(report.readable(document))
    return 0


def _no_report() -> Refusal:
    return NO_REPORT(
        what=f"no report in {paths.REPORTS}",
        expected="one, which deploy and verify write",
        fix="ansible-playbook verify.yml.",
    )


def _check(call: argparse.Namespace) -> int:
    refused: list[Refusal] = []
    for file in call.files or loader.names([paths.RECIPES]).values():
        try:
            loader.read(file)
        except RefusedError as error:
            refused += error.refusals
    if refused:
        raise RefusedError(refused)
    return 0


if __name__ == "__main__":
    sys.exit(main())
