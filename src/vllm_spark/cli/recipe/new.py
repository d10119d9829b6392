"""`vllm-spark recipe new`: a recipe of a model from its repository, its folder or its config.json."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vllm_spark.authoring import composing, new_recipe, recipe_file
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.folder import Folder
from vllm_spark.authoring.hub_source import HubSource
from vllm_spark.authoring.new_recipe import NewRecipe, Order
from vllm_spark.authoring.source import Source
from vllm_spark.cli import arguments
from vllm_spark.cli.recipe import like
from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, register
from vllm_spark.core.units import GB, gib
from vllm_spark.node.supervise.rank import MOST_RANKS
from vllm_spark.pinning.hub import Hub
from vllm_spark.pinning.hub_meter import metered
from vllm_spark.recipe import folders
from vllm_spark.sizing import forecast, reference_spark
from vllm_spark.sizing.forecast import ForecastRequest

BAD_MODEL = register("bad-model-name", runbook="recipe-new")

MODEL = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")

# What a run may receive and how long it may take. The headers of the longest known checkpoint that fits two Sparks,
# with 512 experts stored one by one, have 21 MB.
LIMIT_BYTES, LIMIT_S = 64 << 20, 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", help="OWNER/NAME[@COMMIT] of a hub, a snapshot folder, or a config.json")
    parser.add_argument("--as", dest="identity", metavar="OWNER/NAME@COMMIT", help="what a folder is a copy of")
    parser.add_argument("--name", help="name of the recipe; default: the repository's in lower case")
    parser.add_argument(
        "--node-memory",
        type=int,
        choices=reference_spark.SIZES_GB,
        default=max(reference_spark.SIZES_GB),
        metavar="GB",
        help="memory of each Spark, 64 or 128; default: 128",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        choices=range(1, MOST_RANKS + 1),
        default=0,
        metavar="N",
        help="Sparks, 1 to 8, from 3 on behind a switch; default: one, or two if it needs them",
    )
    parser.add_argument(
        "--context", type=arguments.positive, default=0, help="tokens of context; default: the longest that fits"
    )
    parser.add_argument("--streams", type=arguments.streams, default=1, help="requests at once to plan for")
    parser.add_argument(
        "--drafter", default="auto", help="none, a method (mtp), or a repository; default: the family's"
    )
    parser.add_argument("--like", metavar="RECIPE", help="take image, engine, runtime and memory from this recipe")
    arguments.add_destination(parser)


def run(args: argparse.Namespace) -> int:
    """Write the recipe and print its forecast. Raises RefusedError; then nothing is written."""
    with metered(LIMIT_BYTES, LIMIT_S) as meter:
        source = _source(args)
        request = Request(
            name=args.name or composing.recipe_name(source.repository or source.name),
            context=args.context,
            streams=args.streams,
            drafter=args.drafter,
        )
        order = Order(request, args.node_memory, args.nodes, like.base(args.like, args.nodes))
        new = new_recipe.write(source, order, forecast.catalogue([paths.RECIPES]))
        print(f"read {meter.received / 1e6:.1f} MB in {meter.seconds:.1f} s", file=sys.stderr)
    files = recipe_file.write(new, args.into or folders.of_site(), replace=args.replace)
    print("\n".join(_report(new, files, ForecastRequest(args.context or None, args.streams))))
    return 0


def _source(args: argparse.Namespace) -> Source:
    path = Path(args.model)
    identity = _model(args.identity) if args.identity else None
    if path.exists():
        return Folder(path, *(identity or ()))
    return HubSource(Hub(), *_model(args.model))


def _model(name: str) -> tuple[str, str]:
    match = MODEL.fullmatch(name)
    if not match:
        raise BAD_MODEL.error(
            what=f"{name!r} is neither a path nor the name of a repository",
            expected="OWNER/NAME, OWNER/NAME@COMMIT, a snapshot folder, or a config.json",
            fix=Fix("vllm-spark recipe new OWNER/NAME"),
        )
    return match["repository"], match["revision"] or ""


def _report(new: NewRecipe, files: list[Path], request: ForecastRequest) -> Iterator[str]:
    recipe, model = new.recipe, new.recipe["model"]
    kind = f"family {new.family}" if new.family else f"role {recipe['role']}"
    yield f"{recipe['name']}: {kind}, vLLM {recipe['engine']['version']}"
    if "revision" in model:
        size = f"{new.checkpoint.size_bytes / GB:.1f} GB" if new.checkpoint.size_bytes else "size unknown"
        yield f"  commit {model['revision']}, {size}"
    if "layout" in model:
        yield f"  widths: {', '.join(f'{part} {_width(width)}' for part, width in model['layout'].items())}"
    flags = ("reasoning-parser", "tool-call-parser", "moe-backend", "attention-backend", "max-model-len")
    chosen = [f"{flag} {recipe['args'][flag]}" for flag in flags if flag in recipe["args"]]
    yield f"  {', '.join(chosen) or 'no flags of the family'}"
    yield from (f"  {note}" for note in new.checkpoint.notes)
    yield f"  open questions: {len(new.questions) or 'none'}"
    yield from (f"    {question}" for question in new.questions)
    if not new.family:
        cache = recipe["memory"].get("kv_cache_bytes", 0)
        yield f"memory: {gib(cache)} of cache, {recipe['memory']['utilization']} of the Spark asked for at the start"
    elif "architecture" not in model:
        yield "memory, speed and time to first token: unknown until the questions about its architecture are answered"
    for verdict in new.verdicts.values() if "architecture" in model else ():
        yield from verdict.lines(request)
        yield from (f"  {refusal}" for refusal in verdict.refusals)
    yield from (f"written: {file}" for file in files)
    yield f"Next: vllm-spark check {files[0]}"
    yield f"Then: `recipe: {recipe['name']}` in vllm_deployments, number of hosts: {recipe['topology']['nodes']}"


def _width(width: str | dict[str, int]) -> str:
    return width if isinstance(width, str) else "+".join(f"{name} ({count})" for name, count in width.items())
