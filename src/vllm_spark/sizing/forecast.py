"""Forecast of memory, disk and speed of a recipe on its hosts before a download: go or no-go.

Everything is pure except `catalogue`, which reads recipe files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document, Facts, MemoryFacts
from vllm_spark.core.units import gib
from vllm_spark.node.engine_api import CHAT
from vllm_spark.node.host_layout import HUB_DIR
from vllm_spark.recipe import flag_names, known_issues, loader, proposed, roles
from vllm_spark.sizing import (
    acceptance,
    better,
    constants,
    host_files,
    layout,
    memory,
    pairs,
    prediction,
    recipe_engine,
    reports,
    request_limits,
    speed_floor,
)
from vllm_spark.sizing.acceptance import Accepted
from vllm_spark.sizing.better import Advice, Candidate
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.expected import ONE_STREAM
from vllm_spark.sizing.load import Drafter, Load
from vllm_spark.sizing.measured import Measured, nothing
from vllm_spark.sizing.memory import Fit, MemoryModel
from vllm_spark.sizing.prediction import Prediction, Speed

NO_ROOM_FOR_THE_CACHE = register("no-room-for-the-cache", runbook="plan-no-go")

# With this context the sliding windows of Gemma 4 are full, so a longer one hardly changes the speed.
USUAL_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """The load to plan for: tokens of context of each sequence, and concurrent sequences.

    Without a context, memory is planned for the recipe's longest request and speed for USUAL_CONTEXT. `min_speed` is
    the least speed in tok/s of a sequence; 0 accepts every speed.
    """

    context: int | None = None
    streams: int = 1
    min_speed: float = 0


@dataclass(frozen=True, slots=True)
class ForecastContext:
    """Inputs that do not depend on the recipe: the site's paths and constants, and the recipes to compare with.

    `measured` returns what the bench measured of a recipe on some hosts.

    `reference`: the facts are those of reference Sparks, not of a host.
    """

    hub_dir: str = HUB_DIR
    constants: Constants = field(default_factory=lambda: constants.constants_of({}))
    measured: Callable[[Sequence[str], Document], Measured | None] = nothing
    catalogue: Sequence[Document] = ()
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """Result of a forecast: the fit of each host, the speed, the refusals, notes, and faster recipes."""

    name: str
    hosts: Sequence[str]
    fits: Mapping[str, Fit]
    model: MemoryModel | None
    prediction: Prediction | None
    download_bytes: int
    refusals: Sequence[Refusal]
    notes: Sequence[str]
    better: Sequence[str] = ()
    # False if the size of a file to download is not known; download_bytes is then too small.
    download_known: bool = True
    # True if the facts are those of reference Sparks.
    reference: bool = False
    # What takes memory of an amount that is not known.
    unknown: Sequence[str] = ()
    # False for a server that generates nothing: no speed is predicted.
    generates: bool = True
    # True for an encoder whose weights are known: it needs no model of a cache.
    encoder: bool = False

    @property
    def go(self) -> bool:
        """True if nothing refuses and memory and speed are known: an unknown figure permits nothing."""
        known = self.prediction is not None or not self.generates
        return not (self.refusals or self.unknown) and (self.model is not None or self.encoder) and known

    @property
    def verdict(self) -> str:
        """Return go, no-go, or what is unknown."""
        if self.refusals:
            reasons = len(self.refusals)
            return f"no-go, {reasons} reason{'s' * (reasons > 1)}"
        if self.unknown or not (self.model or self.encoder):
            return "unknown"
        return "go" if self.go else "it fits, and its speed is unknown"


def forecast(
    name: str, recipe: Document, facts: Mapping[str, Facts], request: ForecastRequest, context: ForecastContext
) -> Forecast:
    """Return the forecast of a deployment. `facts` are by host, the head's first."""
    model, notes, hub = memory.model_of(recipe), [], context.hub_dir
    unknown = memory.unknown_parts(recipe)
    notes += [f"the memory of the host for the {what} is not known, and no part of this plan" for what in unknown]
    encoder = memory.is_encoder(recipe) and memory.rank_bytes(recipe) > 0
    if model is None:
        notes += [] if encoder else [f"no prediction of memory and speed: {_missing(recipe)}"]
        notes += memory.weights_alone(recipe, next(iter(facts.values()))["memory"])
    weights = {host: known.get("weights", {}) for host, known in facts.items()}
    unreadable = [refusal for host, found in weights.items() for refusal in host_files.unreadable(host, found)]
    if model and not unreadable:
        model, layout_notes = host_files.as_filed(recipe, model, next(iter(weights.values())), hub)
        notes += layout_notes
    tokens = request.context or request_limits.longest(recipe, model.architecture if model else None)
    own = context.measured(list(facts), recipe)
    peak = own.loading_peak if own else 0
    fits = (
        {host: memory.fit(recipe, model, known["memory"], tokens, peak) for host, known in facts.items()}
        if model
        else {}
    )
    downloads = {host: host_files.download(recipe, known.get("paths", {}), hub) for host, known in facts.items()}
    speed = predicted(recipe, request, context.constants, model, own)
    if model and speed is None and roles.of(recipe) == CHAT:
        notes.append(f"no prediction of speed: the drafter of recipe {recipe['name']} has no drafter.architecture")
    own_load = request_limits.at_once(recipe, request.streams)
    # Nothing was measured of the others, so forecasts are compared without factors.
    plain = predicted(recipe, request, context.constants, model) if own else speed
    faster = better_recipes(Candidate(recipe, plain, own_load), facts, request, context) if plain else []
    notes += [*pairs.notes(recipe, context.constants), *request_limits.waiting(recipe, request.streams)]
    refusals = [
        *unreadable,
        *request_limits.too_long(name, recipe, model.architecture if model else None, request.context),
        *(refusal for host, fit in fits.items() for refusal in too_small(name, host, recipe, fit, request)),
        *(
            refusal
            for host, known in facts.items()
            for refusal in too_large(name, host, recipe, known["memory"], model)
        ),
        *(
            refusal
            for host, size in downloads.items()
            for refusal in host_files.too_little_disk(host, size, facts[host].get("disks", {}).get(hub), hub)
        ),
        *speed_floor.too_slow(name, speed, request.min_speed, faster),
    ]
    notes += own.lines if own else ()
    notes += _loading(fits)
    notes += _reported(recipe, predicted(recipe, ForecastRequest(), context.constants, model, own))
    return Forecast(
        name=name,
        hosts=list(facts),
        fits=fits,
        model=model,
        prediction=speed,
        download_bytes=max(downloads.values(), default=0),
        download_known=all(host_files.size(recipe, source) for source in host_files.sources(recipe)),
        refusals=refusals,
        notes=notes,
        better=[one.line for one in faster],
        reference=context.reference,
        unknown=unknown,
        generates=roles.of(recipe) == CHAT,
        encoder=encoder,
    )


def _missing(recipe: Document) -> str:
    """Return why a recipe has no prediction. An override may take the layout away, and leaves that of the files."""
    model, name = recipe["model"], recipe["name"]
    if roles.of(recipe) != CHAT:
        missing = "model.size_bytes" if memory.is_encoder(recipe) else "model.architecture"
        return f"recipe {name} has no {missing}"
    if "checkpoint" in model and "layout" not in model:
        return f"the flags of recipe {name} load its weights at widths that are not known"
    missing = " and ".join(f"model.{key}" for key in ("architecture", "layout") if key not in model)
    return f"recipe {name} has no {missing}. Fix: {new_recipe(recipe)}. It writes them"


def new_recipe(recipe: Document) -> str:
    """Return the command that writes a recipe of the model of another one, for as many Sparks."""
    nodes = recipe["topology"]["nodes"]
    return f"vllm-spark recipe new {recipe['model']['repository']}{f' --nodes {nodes}' * (nodes > 1)}"


def predicted(
    recipe: Document,
    request: ForecastRequest,
    site: Constants | None = None,
    model: MemoryModel | None = None,
    own: Measured | None = None,
) -> Prediction | None:
    """Return the speed of each sequence, or None if the recipe does not name what it loads.

    `model` replaces the model that the recipe describes. `own` is what was measured of the recipe on the owner's
    Sparks.
    """
    model = model or memory.model_of(recipe)
    load = load_of(recipe, request, model) if model else None
    if model is None or load is None:
        return None
    drafter, shares = recipe.get("drafter"), list[Accepted]()
    if drafter:
        known = own.acceptance if own and own.acceptance else acceptance.of_drafter(drafter)
        shares = acceptance.expected(drafter["speculative_tokens"], known)
    result = prediction.predict(model.architecture, model.layout, load, site, shares)
    return own.applied(result) if own else result


def load_of(recipe: Document, request: ForecastRequest, model: MemoryModel) -> Load | None:
    """Return the load of a request, or None if the dimensions of the drafter are not known, or nothing is generated."""
    drafter = recipe.get("drafter")
    if (drafter and model.drafter is None) or roles.of(recipe) != CHAT:
        return None
    engine = recipe_engine.of(recipe)
    return Load(
        context=request.context or USUAL_CONTEXT,
        streams=request_limits.at_once(recipe, request.streams),
        tensor_parallel=recipe["topology"]["tensor_parallel"],
        kv_width=model.kv_width,
        drafter=_drafter(drafter, model) if drafter else None,
        eager=engine.eager,
        marlin=engine.marlin,
        marlin_8=engine.marlin_8,
        batched=recipe_engine.batched_tokens(recipe),
    )


def _drafter(drafter: Document, model: MemoryModel) -> Drafter | None:
    width = model.layout.get("drafter", layout.UNQUANTISED)
    return Drafter(model.drafter, drafter["speculative_tokens"], 0.0, width) if model.drafter else None


def better_recipes(
    own: Candidate, facts: Mapping[str, Facts], request: ForecastRequest, context: ForecastContext
) -> list[Advice]:
    """Return how the recipe itself serves all streams, and the recommended recipes of the catalogue that fit the same
    hosts, compared with that."""
    others, same = [], (own.recipe["topology"]["nodes"], better.family(own.recipe))
    for other in context.catalogue:
        if (other["topology"]["nodes"], better.family(other)) != same or other["name"] == own.recipe["name"]:
            continue
        speed = predicted(other, request, context.constants)
        if speed and all(_fits(other, host_facts, request) for host_facts in facts.values()):
            others.append(Candidate(other, speed, request_limits.at_once(other, request.streams)))
    limit = {"args": {**own.recipe["args"], "max-num-seqs": request.streams}}
    wider = predicted({**own.recipe, **limit}, request, context.constants) if own.streams < request.streams else None
    if wider is None:
        return better.advice(own, others)
    more = Candidate(own.recipe, wider, request.streams)
    advised = list(better.raised(own, more, request.streams))
    return [*advised, *better.advice(more if advised else own, others)]


def _fits(recipe: Document, facts: Facts, request: ForecastRequest) -> bool:
    model = memory.model_of(recipe)
    if model is None or any(memory.too_little_refusal("", "", recipe, facts["memory"])):
        return False
    context = request.context or flag_names.positive_number(recipe["args"], "max-model-len") or USUAL_CONTEXT
    return memory.fit(recipe, model, facts["memory"], context).requests >= _required_requests(request)


def _required_requests(request: ForecastRequest) -> int:
    """Return how many requests must fit at once. Without a context, streams may wait for each other."""
    return request.streams if request.context else 1


def too_small(name: str, host: str, recipe: Document, fit: Fit, request: ForecastRequest) -> Iterator[Refusal]:
    """Refuse a start whose cache does not hold the requests of the load."""
    required = _required_requests(request)
    if fit.requests < required:
        load = f"{required} requests of {fit.context} tokens" if required > 1 else f"{fit.context} tokens"
        cache = gib(required * fit.request)
        # A recipe with a measured peak of loading has it in there.
        workspace = f" and the workspace {gib(fit.workspace)}" if fit.workspace else ""
        yield NO_ROOM_FOR_THE_CACHE(
            what=f"{name} on {host}: weights take {gib(fit.weights)}{workspace} of the "
            f"{gib(fit.reserved)} that the engine reserves, which leaves {gib(max(0, fit.room))} of cache; "
            f"{load} need {cache}",
            expected=f"{cache} of cache",
            fix=_fix_of_room(recipe, fit, required, request),
        )


def too_large(
    name: str, host: str, recipe: Document, known: MemoryFacts, model: MemoryModel | None
) -> Iterator[Refusal]:
    """Refuse weights that the reservation does not hold, of a recipe of which no more is known than their size. An
    encoder takes what it needs, whatever its share (measured: 1.5 GiB at 0.01 as at 0.05)."""
    weights, reserved = memory.rank_bytes(recipe), memory.reserved_bytes(recipe, known["total"])
    if model is None and weights >= reserved > 0 and not memory.is_encoder(recipe):
        yield NO_ROOM_FOR_THE_CACHE(
            what=f"{name} on {host}: weights take {gib(weights)}, and the engine reserves {gib(reserved)}",
            expected=f"more than {gib(weights)} of reservation",
            fix=f"a recipe with smaller weights (`vllm-spark recipes`), or more of overrides.memory.utilization: "
            f"a Spark has {gib(known['total'])}.",
        )


def _fix_of_room(recipe: Document, fit: Fit, required: int, request: ForecastRequest) -> str:
    """Return the fix of a cache that is too small: more of it, if the Spark has it and no known issue forbids it."""
    missing = required * fit.request - fit.room
    share = math.ceil((fit.reserved + missing) / fit.total * 100) / 100
    fixed = "kv_cache_bytes" in recipe["memory"]
    more = missing if fixed else share * fit.total - fit.reserved
    fits = fit.reserved + more + fit.beside + fit.floor <= fit.available and (fixed or share < memory.LARGEST_SHARE)
    if fits:
        figure = str(required * fit.request) if fixed else f"{share:.2f} or more"
        raised = f"overrides.memory.{memory.budget_key(recipe)}: {figure}"
        return raised + (f", or {_less(request)}." if fit.room > 0 else ".")
    other = ", or one for two Sparks" if recipe["topology"]["nodes"] == 1 else ""
    smaller = f"a recipe with smaller weights{other} (`vllm-spark recipes`)"
    if fit.room > 0:
        return f"{_less(request)}; or {smaller}."
    return f"{smaller}: {gib(fit.total)} of memory do not hold this one beside the host."


def _less(request: ForecastRequest) -> str:
    asked = ", --context or --streams" if request.context else ""
    return f"a shorter context: lower overrides.args.max-model-len{asked}"


def _loading(fits: Mapping[str, Fit]) -> Iterator[str]:
    """Yield a note if the peak of loading is not known, and Sparks might not have it beside the ready server."""
    spares: dict[str, list[str]] = {}
    for host, fit in fits.items():
        spare = fit.available - fit.floor - fit.reserved - fit.beside
        if not fit.peak and 0 <= spare < memory.LOADING_MORE_BYTES:
            spares.setdefault(gib(spare), []).append(host)
    for spare_text, hosts in spares.items():
        yield (
            f"{', '.join(hosts)}: the peak of loading is not measured; public starts needed up to "
            f"{gib(memory.LOADING_MORE_BYTES)} more than the ready server, and {spare_text} are free beside it (the "
            "bench's profile start measures it)"
        )


def _reported(recipe: Document, speed: Prediction | None) -> Iterator[str]:
    """Yield a note for each speed that the recipe's sources report, and whether it is outside of the forecast, and one
    for the spread of other owners' reports."""
    for entry in recipe.get("expected", []):
        if entry["metric"] != "decode" or entry["unit"] != "tok/s":
            continue
        note = f"reported: {entry['value']} tok/s, {entry['load']} ({entry['source']})"
        if speed and entry["load"].startswith(ONE_STREAM):
            note += _judged(entry, speed)
        yield note
    if spread := reports.spread(recipe):
        yield f"reported: {spread}, in tok/s of one stream on texts of their own"


def _judged(entry: Document, speed: Prediction) -> str:
    """Return whether a reported speed is outside of the forecast of its text, or of all if it names none."""
    named = _text_of(entry, speed)
    low, high = speed.interval(named)
    place = "above" if entry["value"] > high else "below" if entry["value"] < low else "inside"
    if named is None:
        return f"; it names no kind of text: {place} the forecast of all kinds, {low:.1f} to {high:.1f}"
    where = f" on {named.text}" if named.text else ""
    return "" if place == "inside" else f"; {place} the forecast{where}, {low:.1f} to {high:.1f}"


def _text_of(entry: Document, speed: Prediction) -> Speed | None:
    """Return the speed on the text that a reported figure names in its load or as its corpus. Without a drafter there
    is one speed."""
    words = [*entry["load"].replace(",", " ").split(), entry.get("cell", {}).get("corpus"), ""]
    return next((found for word in words if word is not None and (found := speed.on(word))), None)


def catalogue(folders: Sequence[Path], near: Document | None = None) -> tuple[Document, ...]:
    """Return the recipes that a forecast compares with.

    They are valid, proposed by the toolkit, name what they load, and have no refused known issue. With the recipe
    `near`, files that name no model of its family are not parsed: its forecast recommends none of them.
    """
    recipes = []
    for file in (loader.relatives(near, folders) if near else loader.names(folders)).values():
        try:
            document = loader.read(file).document
            # A recipe is judged here and not a deployment of it: the loopback address needs no API key.
            subject = known_issues.of_closed(document)
            usable = proposed.is_proposed(document) and memory.model_of(document)
            if usable and not any(known_issues.refusals(subject, ())):
                recipes.append(document)
        except RefusedError:
            continue  # `vllm-spark check` reports its faults
    return tuple(recipes)
