"""`vllm-spark plan`: go or no-go of a recipe, for reference Sparks or from the facts of real ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllm_spark.cli import arguments
from vllm_spark.core import paths, ports
from vllm_spark.core.refusal import Refusal
from vllm_spark.core.types import Facts
from vllm_spark.recipe import engine_arguments, known_issues
from vllm_spark.recipe.loader import Recipe
from vllm_spark.sizing import forecast, forecast_text, memory, reference_spark
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("plan", help="memory, download and speed of a recipe: go or no-go, without any host")
    arguments.add_arguments(parser, "a Spark that nothing uses")
    parser.add_argument(
        "--memory",
        type=_positive,
        metavar="GB",
        help="memory of each Spark without --facts, 64 or 128; default: 128, and the verdict for 64",
    )
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
    size_gb = args.memory or max(reference_spark.SIZES_GB)
    result = _forecast(args, recipe, facts or _reference(recipe, size_gb))
    print("\n".join(forecast_text.lines(result, recipe.document, _request(args))))
    if not facts and not args.memory:
        for other_gb in reference_spark.SIZES_GB[:-1]:
            other = _forecast(args, recipe, _reference(recipe, other_gb))
            verdict = _verdict(other.refusals, result.refusals)
            print(f"  on Sparks of {other_gb} GB: {verdict} (vllm-spark plan --memory {other_gb})")
    for refusal in result.refusals:
        print(refusal, file=sys.stderr)
    return 0 if result.go else 1


def _reference(recipe: Recipe, size_gb: int) -> dict[str, Facts]:
    """Return the facts of idle Sparks of this size."""
    return {host: {"memory": reference_spark.memory(size_gb)} for host in arguments.hosts_of(recipe)}


def _forecast(args: argparse.Namespace, recipe: Recipe, facts: Mapping[str, Facts]) -> Forecast:
    """Return the forecast with the refusals that need no other facts."""
    context = ForecastContext(catalogue=forecast.catalogue([paths.RECIPES]))
    result = forecast.forecast(recipe.name, recipe.document, facts, _request(args), context)
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
    return replace(result, refusals=refusals, notes=notes)


def _request(args: argparse.Namespace) -> ForecastRequest:
    return ForecastRequest(args.context, args.streams, args.min_speed)


def _verdict(refusals: Sequence[Refusal], printed: Sequence[Refusal]) -> str:
    """Return go, or no-go with its first reason that is not among those printed in full."""
    own = [refusal for refusal in refusals if refusal not in printed]
    if own:
        return f"no-go, {own[0].what}"
    return "no-go for the same reason" if refusals else "go"
