"""`vllm-spark plan`: go or no-go of a recipe, for reference Sparks or from the facts of real ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_spark.cli import arguments, site_file
from vllm_spark.cli.site_file import Site
from vllm_spark.core import json_output, paths, removed
from vllm_spark.core.refusal import Fix, Refusal
from vllm_spark.core.types import Document, Facts
from vllm_spark.inventory import cabling
from vllm_spark.sizing import forecast, forecast_document, forecast_text, reference_spark, verdict
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import Forecast, ForecastContext, ForecastRequest
from vllm_spark.sizing.measured import Measured, nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    arguments.add_arguments(parser, "a Spark that nothing uses")
    parser.add_argument(
        "--memory",
        type=arguments.positive,
        metavar="GB",
        help="memory of each Spark without --facts, 64 or 128; default: 128, and the verdict for 64",
    )
    parser.add_argument("--context", type=arguments.positive, help="tokens of context of each sequence")
    arguments.add_accepted(parser)
    parser.add_argument("--streams", type=arguments.streams, default=1, help="concurrent sequences")
    parser.add_argument("--min-speed", type=float, metavar="TOK_S", help="refuse a slower forecast")
    parser.add_argument(
        "--site",
        type=Path,
        metavar="FILE",
        help="variables of a site, as of an inventory's group_vars/all: vllm_roofline and vllm_least_tok_s",
    )
    parser.add_argument("--sparks", type=int, choices=cabling.NUMBERS, help="one server on so many Sparks to buy")
    parser.add_argument("--fabric", choices=cabling.FABRICS, help="what joins --sparks; default: switch")
    parser.add_argument(
        "--gbps",
        type=arguments.positive,
        nargs="+",
        metavar="N",
        help="Gbit/s of the links of --sparks, one for all or one each: the slowest decides; default: 200",
    )
    parser.add_argument("--constants", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="for programs: docs/reference/json.md")


def run(args: argparse.Namespace) -> int:
    """Print the forecast. Returns 1 for a no-go, and for a forecast that does not know memory or speed."""
    recipe, _ = arguments.load_recipe(args.recipe)
    if args.sparks or args.fabric or args.gbps:
        return _cables(args, recipe.document)
    fact_files = arguments.read_facts(recipe, args.facts)
    facts: dict[str, Facts] = {host["hostname"]: host for host in fact_files}
    site = site_file.read(args.site)
    catalogue = forecast.catalogue([paths.RECIPES], near=recipe.document)
    if args.constants:
        print(removed.CONSTANTS.format(file=args.constants), file=sys.stderr)
    known = site.between(list(facts))
    context = ForecastContext(
        constants=known,
        measured=_measured(known) if facts else nothing,
        catalogue=catalogue,
        reference=not facts,
    )
    nodes, size_gb = recipe.document["topology"]["nodes"], args.memory or max(reference_spark.SIZES_GB)
    request, accepted = _request(args, site), args.accept_known_issue
    on = facts or reference_spark.facts(nodes, size_gb)
    result = verdict.judged(recipe.document, on, request, context, accepted)
    if args.json:
        entry = forecast_document.of_forecast(result, recipe.document, request, None)
        document = {**json_output.refused("plan", result.refusals), "deployments": [entry]}
        print(json_output.text(document))
    else:
        print("\n".join(forecast_text.lines(result, recipe.document, request)))
    if not (facts or args.memory or args.json):
        for other_gb in reference_spark.SIZES_GB[:-1]:
            smaller = reference_spark.facts(nodes, other_gb)
            other = _verdict(verdict.judged(recipe.document, smaller, request, context, accepted), result.refusals)
            print(f"  on Sparks of {other_gb} GB: {other} (vllm-spark plan --memory {other_gb})")
    for refusal in result.refusals:
        print(refusal, file=sys.stderr)
    return 0 if result.go else 1


def _cables(args: argparse.Namespace, recipe: Document) -> int:
    """Print the plan of a server on more Sparks than a deployment takes. Returns 1 for a no-go, and for an unknown."""
    from vllm_spark.sizing import cable_plan, cable_text  # noqa: PLC0415  a plan of a deployment needs no cables

    fabric = args.fabric or "switch"
    if args.facts or not args.sparks:
        command = f"vllm-spark plan {args.recipe} --sparks {args.sparks or 4} --fabric {fabric}"
        raise cable_plan.CABLE_PLAN.error(
            what="--fabric and --gbps without --sparks" if args.facts == [] else "--sparks with --facts",
            expected="--sparks without --facts, because nobody has these Sparks yet",
            fix=Fix(command),
        )
    rates, most = args.gbps or (), cabling.table()["gbps"]
    if len(rates) not in {0, 1, args.sparks} or max(rates, default=0) > most:
        raise cable_plan.CABLE_PLAN.error(
            what=f"--gbps {' '.join(map(str, rates))} for {args.sparks} Sparks",
            expected=f"one number, or {args.sparks}, one for each link, and none above the {most} of a port",
            fix=f"--gbps {min(most, *rates)}, if that is the slowest link.",
        )
    site = site_file.read(args.site)
    request = _request(args, site)
    memory, accepted = reference_spark.memory(args.memory or max(reference_spark.SIZES_GB)), args.accept_known_issue
    wanted = cable_plan.Wanted(args.recipe, fabric, args.sparks, memory, request, rates, accepted)
    plan = cable_plan.plan(recipe, wanted, site.constants)
    if args.json:
        entry = forecast_document.of_forecast(plan.forecast, recipe, request, None)
        refused = json_output.refused("plan", plan.forecast.refusals)
        print(json_output.text({**refused, "deployments": [entry], "cabling": cable_text.document(plan)}))
    else:
        print("\n".join(cable_text.lines(plan, recipe)))
    for refusal in plan.forecast.refusals:
        print(refusal, file=sys.stderr)
    return 0 if plan.forecast.go else 1


def _measured(known: Constants) -> Callable[[Sequence[str], Document], Measured | None]:
    from vllm_spark.bench.measured_here import Measurements  # noqa: PLC0415  a plan without facts needs no bench

    return Measurements(paths.REPORTS / "bench", known).of


def _request(args: argparse.Namespace, site: Site) -> ForecastRequest:
    least = site.least_speed if args.min_speed is None else args.min_speed
    return ForecastRequest(args.context, args.streams, least)


def _verdict(other: Forecast, printed: Sequence[Refusal]) -> str:
    """Return the verdict, a no-go with its first reason that is not among those printed in full."""
    own = [refusal for refusal in other.refusals if refusal not in printed]
    if own:
        return f"no-go, {own[0].what}"
    return "no-go for the same reason" if other.refusals else other.verdict
