"""`recipe new`: from a source to a recipe, its architectures and its forecast. Reads the source and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_spark.authoring import checkpoint as checkpoints
from vllm_spark.authoring import (
    composing,
    dimensions,
    engine_choice,
    family,
    judging,
    least_size,
    model_facts,
    pooling,
    task,
)
from vllm_spark.authoring.checkpoint import Checkpoint
from vllm_spark.authoring.composing import Request
from vllm_spark.authoring.judging import Verdict
from vllm_spark.authoring.model_facts import ModelFacts, Question
from vllm_spark.authoring.source import Source
from vllm_spark.core import text
from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.core.units import GB
from vllm_spark.inventory import cabling
from vllm_spark.recipe import architecture
from vllm_spark.sizing import reference_spark
from vllm_spark.sizing.forecast import ForecastRequest

NEEDS_CODE = register("needs-remote-code", runbook="recipe-new")
NO_NAME = register("no-repository", runbook="recipe-new")
BAD_CONTEXT = register("bad-context", runbook="recipe-new")
TOO_MANY = register("too-many-nodes", runbook="recipe-new")

# What is judged without --nodes.
NODES = (1, 2)
# The end of the name of an architecture whose own name is that of another one of the catalogue.
OWN = "-own"


@dataclass(frozen=True, slots=True)
class Order:
    """What the operator asks for. `nodes` 0 takes the fewest Sparks that it fits. `like` is a recipe of a site whose
    image, engine, runtime and memory the new one takes over."""

    request: Request
    node_memory_gb: int
    nodes: int = 0
    like: Document | None = None


@dataclass(frozen=True, slots=True)
class NewRecipe:
    """The result. `recipe` names its architectures; `architectures` are those that the catalogue does not have.

    `verdicts` are by number of Sparks, of every number that the memory permits to judge. `family` is empty for a role
    other than chat.
    """

    recipe: Document
    architectures: dict[str, Any]
    questions: Sequence[Question]
    verdicts: dict[int, Verdict]
    checkpoint: Checkpoint
    family: str


def write(source: Source, order: Order, catalogue: Sequence[Document]) -> NewRecipe:
    """Return the new recipe. Raises RefusedError if there can be none."""
    opened = checkpoints.open_checkpoint(source)
    if opened.task.name in pooling.ROLES:
        return _pooled(source, opened, order, catalogue)
    if opened.task.name != "chat":
        raise RefusedError([task.refusal(opened.name, opened.task)])
    known = _family(opened, order)
    _refuse_early(opened, order)
    read = checkpoints.read_tensors(source, opened, dimensions.alike(opened.config, known["architecture"]))
    model = model_facts.read(read, known, order.request.name)
    model = _with_known_name(model)
    base = order.like or engine_choice.choose(opened.name, known, catalogue)
    documents = {one["name"]: one for one in (model.architecture, model.head) if one}
    new = {name: one for name, one in documents.items() if name not in architecture.names()}
    verdicts, questions = {}, {}
    for nodes in [order.nodes] if order.nodes else NODES:
        recipe, questions[nodes] = composing.compose(read, model, base, order.request, nodes)
        verdict = _judged(recipe | ({"architectures": new} if new else {}), order, catalogue)
        larger = _larger(opened, _least(opened, model), order, nodes)
        verdicts[nodes] = replace(verdict, refusals=larger or verdict.refusals)
    chosen = next((nodes for nodes, verdict in verdicts.items() if not verdict.refusals), 0)
    if not chosen:
        raise RefusedError(verdicts[max(verdicts)].refusals)
    recipe = {key: value for key, value in verdicts[chosen].recipe.items() if key != "architectures"}
    used = {recipe[key].get("architecture") for key in ("model", "drafter") if key in recipe}
    brought = {name: one for name, one in new.items() if name in used}
    return NewRecipe(recipe, brought, questions[chosen], verdicts, read, known["name"])


def _pooled(source: Source, opened: Checkpoint, order: Order, catalogue: Sequence[Document]) -> NewRecipe:
    """Return the recipe of a model for embeddings or of a reranker, for one Spark if no number is asked for."""
    _refuse_early(opened, order)
    if opened.config.get("auto_map"):
        raise RefusedError([_needs_code(opened)])
    if order.nodes > composing.PAIR:
        raise TOO_MANY.error(
            what=f"--nodes {order.nodes} for {opened.name}, a model of the role {opened.task.name}",
            expected="1 or 2, because such a model fits them",
            fix=Fix(f"vllm-spark recipe new {opened.repository} --nodes 1", "Then deploy it on each Spark."),
        )
    nodes, total = order.nodes or min(NODES), reference_spark.memory(order.node_memory_gb)["total"]
    base = order.like or engine_choice.choose(opened.name, pooling.ANY_FAMILY, catalogue)
    recipe, questions = pooling.compose(source, opened, base, order.request, pooling.Sparks(nodes, total))
    verdict = judging.judge(recipe, order.node_memory_gb, ForecastRequest(None, order.request.streams), catalogue)
    if verdict.refusals:
        raise RefusedError(verdict.refusals)
    return NewRecipe(recipe, {}, questions, {nodes: verdict}, opened, "")


def _family(opened: Checkpoint, order: Order) -> Document:
    """Return the family of a checkpoint. Raises RefusedError for an unknown one, and for code that it would run."""
    needs_code = bool(opened.config.get("auto_map"))
    try:
        known = family.of_config(opened.name, opened.config)
    except RefusedError as error:
        raise RefusedError([*([_needs_code(opened)] if needs_code else []), *error.refusals]) from error
    if needs_code and not known["engine"].get("own_code"):
        least = _least(opened, model_facts.read(opened, known, order.request.name))
        raise RefusedError([_needs_code(opened), *_larger(opened, least, order, order.nodes or max(NODES))])
    return known


def _with_known_name(model: ModelFacts) -> ModelFacts:
    """Return the model with the architecture file of the catalogue that describes it, if there is one."""
    if not model.settled:
        return model
    return replace(model, architecture=_known(model.architecture), head=_known(model.head) if model.head else {})


def _known(document: dict[str, Any]) -> dict[str, Any]:
    """Return the catalogue's file of the same architecture, or the document, whose name no other model then has."""
    for name, file in architecture.names().items():
        if model_facts.same_model(document, architecture.load(name)):
            return dict(architecture.read_document(file))
    taken = document["name"] in architecture.names()
    return {**document, "name": f"{document['name']}{OWN * taken}"}


def _judged(recipe: dict[str, Any], order: Order, catalogue: Sequence[Document]) -> Verdict:
    """Return the verdict of a recipe with its memory and its longest context."""
    recipe = judging.sized(recipe, order.node_memory_gb) if not order.like else recipe
    asked = order.request.context
    if "architecture" in recipe["model"]:
        positions = architecture.of_recipe(recipe, recipe["model"]["architecture"]).positions
        if asked > positions:
            raise RefusedError([_bad_context(recipe["name"], asked, positions)])
        longest = judging.longest_context(recipe, order.node_memory_gb, positions)
        recipe = _with_context(recipe, asked or longest)
    elif asked:
        recipe = _with_context(recipe, asked)
    request = ForecastRequest(asked or None, order.request.streams)
    return judging.judge(recipe, order.node_memory_gb, request, catalogue)


def _with_context(recipe: dict[str, Any], tokens: int) -> dict[str, Any]:
    args = {**recipe["args"], **({"max-model-len": tokens} if tokens else {})}
    return {**recipe, "args": dict(sorted(args.items()))}


def _refuse_early(opened: Checkpoint, order: Order) -> None:
    """Refuse what needs no header: no name, and more bytes than the Sparks have."""
    if not opened.repository:
        raise RefusedError([_no_name(opened)])
    if larger := _larger(opened, opened.size_bytes, order, order.nodes or max(NODES)):
        raise RefusedError(larger)


def _least(opened: Checkpoint, model: ModelFacts) -> int:
    """Return the bytes of the weights, or the least that they can have."""
    return opened.size_bytes or model.least_bytes or least_size.of_name(opened.repository)


def _larger(opened: Checkpoint, size: int, order: Order, nodes: int) -> list[Refusal]:
    """Refuse weights that are larger than so many Sparks hold, or must be."""
    if size <= least_size.most(nodes, order.node_memory_gb):
        return []
    larger = (more for more in (composing.PAIR, *cabling.NUMBERS) if more > nodes)
    enough = next((more for more in larger if size <= least_size.most(more, order.node_memory_gb)), 0)
    switch = " behind a switch" * (enough > composing.PAIR)
    more = f", or take {enough} Sparks{switch} (--nodes {enough})" * bool(enough)
    words = least_size.words(size, least=not opened.size_bytes)
    four = size * least_size.FOUR_BITS / model_facts.least_bits(opened)
    helps = four <= least_size.most(nodes, order.node_memory_gb)
    fix = (least_size.FEWER_BITS if helps else least_size.SMALLER.format(four / GB)) + more
    return [least_size.too_large(opened.name, words, nodes, order.node_memory_gb, fix)]


def _needs_code(opened: Checkpoint) -> Refusal:
    return NEEDS_CODE(
        what=f"{opened.name} needs its own Python code (auto_map of config.json), which --trust-remote-code would run",
        expected="a model that the engine loads with its own code",
        fix="name a checkpoint without auto_map, or one of a family of recipes/families whose engine.own_code is true.",
    )


def _no_name(opened: Checkpoint) -> Refusal:
    return NO_NAME(
        what=f"{opened.name} does not say which repository it is a copy of",
        expected="a folder models--OWNER--NAME/snapshots/COMMIT of the hub's cache, or its name",
        fix=Fix("vllm-spark recipe new FOLDER --as OWNER/NAME@COMMIT"),
    )


def _bad_context(name: str, asked: int, positions: int) -> Refusal:
    return BAD_CONTEXT(
        what=f"--context {asked} for {text.one_line(name)}, whose config.json has {positions} positions",
        expected=f"at most {positions}",
        fix=f"--context {positions}.",
    )
