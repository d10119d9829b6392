"""`vllm-spark plan`: go or no-go of a recipe from a nominal Spark, or from the facts of real ones."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from vllm_spark.cli import arguments as cli_arguments
from vllm_spark.core import paths, ports
from vllm_spark.recipe import known_issues
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import forecast, memory, reference_spark
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    plan = commands.add_parser("plan", help="memory, download and speed of a recipe: go or no-go, without any host")
    cli_arguments.add_arguments(plan, "a Spark that nothing uses")
    plan.add_argument("--context", type=_positive, help="tokens of context of each sequence")
    plan.add_argument("--accept-known-issue", nargs="+", default=[], metavar="ID", help="go on in spite of it")
    plan.add_argument("--streams", type=_positive, default=1, help="sequences at once")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def run(call: argparse.Namespace) -> int:
    """Print the forecast. Exit status 1 for a no-go."""
    loaded, _ = cli_arguments.load_recipe(call.recipe)
    given = cli_arguments.read_facts(loaded, call.facts)
    boxes = {facts["hostname"]: facts for facts in given} or {
        host: {"memory": reference_spark.MEMORY} for host in _hosts(loaded)
    }
    load = ForecastRequest(call.context, call.streams)
    setting = ForecastContext(catalogue=forecast.catalogue([paths.RECIPES]))
    found = forecast.forecast(loaded.name, loaded.document, boxes, load, setting)
    subject = known_issues.Subject(loaded.document, loaded.document.get("secrets", ()), ports.LOOPBACK)
    known = known_issues.refusals(subject, call.accept_known_issue)
    scarce = [
        refusal
        for host, facts in boxes.items()
        if not facts.get("running_units")
        for refusal in memory.too_little_refusal(loaded.name, host, loaded.document, facts["memory"])
    ]
    found = replace(found, refusals=[*known, *found.refusals, *scarce])
    print("\n".join(forecast.lines(found, loaded.document, load)))
    for refusal in found.refusals:
        print(refusal, file=sys.stderr)
    return 0 if found.go else 1


def _hosts(loaded: Recipe) -> tuple[str, ...]:
    return reference_spark.HOSTS[: loaded.document["topology"]["nodes"]]
