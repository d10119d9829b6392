"""`vllm-spark render`: the launch script of a recipe, without any host."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from vllm_spark.cli import arguments
from vllm_spark.core.refusal import Fix, Refusal, RefusedError
from vllm_spark.core.types import Facts
from vllm_spark.deploy import checks, launch, ranks
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory import deployment, spec
from vllm_spark.node.supervise.rank import MOST_RANKS
from vllm_spark.sizing import reference_spark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    arguments.add_arguments(parser, "nothing is refused")
    parser.add_argument(
        "--rank",
        type=int,
        default=0,
        choices=range(MOST_RANKS),
        help="rank in a recipe for several Sparks; 0 is the head",
    )
    parser.add_argument("--lock", type=Path, help="lock file that gives the image its digest")
    parser.add_argument("--open", action="store_true", help="of a server without an edge, as vllm_edge: {open: true}")
    parser.add_argument("--port", type=int, default=8000, help="of an open server (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the launch script of one rank. Raises RefusedError if the recipe does not resolve or its facts refuse it.

    Without facts, every secret of the recipe counts as set and a reference Spark stands for each host.
    """
    recipe, folders = arguments.load_recipe(args.recipe)
    fact_files = arguments.read_facts(recipe, args.facts, args.rank)
    hosts = arguments.hosts_of(recipe)
    placed = {"name": deployment.name_for(recipe.name), "recipe": recipe.name, "hosts": list(hosts), "port": args.port}
    inventory = spec.Inventory(
        deployments=[placed],
        sparks=hosts,
        limit=hosts,
        recipe_folders=folders,
        lock_file=args.lock,
        secrets=dict.fromkeys(recipe.document.get("secrets", []), True),
        edge={"open": args.open},
    )
    try:
        specs = {host: resolved for host in hosts if (resolved := spec.resolve(inventory, host))}
    except RefusedError as error:
        raise RefusedError(_own(refusal, recipe.name) for refusal in error.refusals) from error
    facts = fact_files or map(_reference_facts, hosts)
    found = {host: HostContext(host, specs[host], own) for host, own in zip(hosts, facts, strict=True)}
    if fact_files and (refusals := [refusal for one in found.values() for refusal in checks.refusals(one)]):
        raise RefusedError(refusals)
    print(launch.script(ranks.joined(found)[hosts[args.rank]].spec), end="")
    return 0


def _own(refusal: Refusal, recipe: str) -> Refusal:
    """Return a refusal with the fix for this command. No inventory places the recipe: the port alone comes from the
    user."""
    is_port = refusal.id == deployment.BAD_DEPLOYMENTS.id
    return replace(refusal, fix=str(Fix(f"vllm-spark render {recipe} --port 8000"))) if is_port else refusal


def _reference_facts(host: str) -> Facts:
    """Return the facts that a launch depends on, of a reference Spark."""
    return {"fabric": reference_spark.fabric(host), "images": {}}
