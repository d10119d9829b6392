"""`vllm-spark plan`: go or no-go of a recipe, for reference Sparks or from the facts of real ones."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from vllm_spark.cli import arguments
from vllm_spark.core import paths, ports
from vllm_spark.core.types import Facts
from vllm_spark.recipe import engine_arguments, known_issues
from vllm_spark.sizing import forecast, forecast_text, memory, reference_spark
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("plan", help="memory, download and speed of a recipe: go or no-go, without any host")
    arguments.add_arguments(parser, "a Spark that nothing uses")
    parser.add_argument("--context", type=_positive, help="tokens of context of each sequence")
    parser.add_argument("--accept-known-issue", nargs="+", default=[], metavar="ID", help="continue in spite of it")
    parser.add_argument("--streams", type=_positive, default=1, help="concurrent sequences")
    parser.add_argument("--min-speed", type=float, default=0, metavar="TOK_S", help="refuse a slower forecast")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def run(args: argparse.Namespace) -> int:
    """Print the forecast. Returns 1 for a no-go."""
    recipe, _ = arguments.load_recipe(args.recipe)
    fact_files = arguments.read_facts(recipe, args.facts)
    facts: dict[str, Facts] = {host["hostname"]: host for host in fact_files}
    if not facts:
        facts = {host: {"memory": reference_spark.MEMORY} for host in arguments.hosts_of(recipe)}
    request = ForecastRequest(args.context, args.streams, args.min_speed)
    context = ForecastContext(catalogue=forecast.catalogue([paths.RECIPES]))
    result = forecast.forecast(recipe.name, recipe.document, facts, request, context)
    subject = known_issues.Subject(recipe.document, recipe.document.get("secrets", ()), ports.LOOPBACK)
    accepted = args.accept_known_issue
    refusals = [
        *known_issues.refusals(subject, accepted),
        *engine_arguments.refusals(recipe.document, accepted),
        *result.refusals,
    ]
    for host, host_facts in facts.items():
        # The memory of a unit that still runs will be free again, by an amount that is not known.
        if not host_facts.get("running_units"):
            refusals += memory.too_little_refusal(recipe.name, host, recipe.document, host_facts["memory"])
    notes = [*result.notes, *engine_arguments.notes(recipe.document, accepted)]
    result = replace(result, refusals=refusals, notes=notes)
    print("\n".join(forecast_text.lines(result, recipe.document, request)))
    for refusal in result.refusals:
        print(refusal, file=sys.stderr)
    return 0 if result.go else 1
