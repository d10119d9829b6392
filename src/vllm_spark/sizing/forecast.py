"""Forecast of memory, disk and speed of a recipe on its hosts before a download: go or no-go.

Everything is pure except `catalogue`, which reads recipe files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document, Facts
from vllm_spark.core.units import GB, gib
from vllm_spark.inventory.spec import SiteSettings
from vllm_spark.recipe import architecture, flag_names, known_issues, loader
from vllm_spark.recipe.hub_cache import snapshot
from vllm_spark.sizing import checkpoint_layout, memory, roofline, speed_floor
from vllm_spark.sizing.memory import Fit, MemoryModel
from vllm_spark.sizing.roofline import Constants, Drafter, Load, Prediction

BAD_WEIGHTS = register("bad-weights", runbook="model-missing")
NO_ROOM_FOR_THE_CACHE = register("no-room-for-the-cache", runbook="plan-no-go")
TOO_LITTLE_DISK = register("too-little-disk", runbook="plan-no-go")

# With this context the sliding windows of Gemma 4 are full, so a longer one hardly changes the speed.
USUAL_CONTEXT = 1024


# A recipe of the same model is recommended if it is faster by more than two operators differ; one of another model, if
# it is much faster.
FASTER, MUCH_FASTER = 1.2, 2.0

ONE_STREAM = "one stream"

# From this share on the engine took the memory of the desktop (field report 000; recipes/compatibility.yml).
LARGEST_SHARE = 0.80


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
    """Inputs that do not depend on the recipe: the site's paths and constants, and the recipes to compare with."""

    hub_dir: str = SiteSettings().hub_dir
    constants: Constants = field(default_factory=Constants)
    catalogue: Sequence[Document] = ()


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

    @property
    def go(self) -> bool:
        return not self.refusals


def forecast(
    name: str, recipe: Document, facts: Mapping[str, Facts], request: ForecastRequest, context: ForecastContext
) -> Forecast:
    """Return the forecast of a deployment. `facts` are by host, the head's first."""
    model, notes = memory.model_of(recipe), []
    if model is None:
        missing = " and ".join(f"model.{key}" for key in ("architecture", "layout") if key not in recipe["model"])
        notes.append(f"no prediction of memory and speed: recipe {recipe['name']} has no {missing}")
    unreadable = [refusal for host, host_facts in facts.items() for refusal in _unreadable(host, host_facts)]
    if model and not unreadable:
        model, layout_notes = _as_filed(recipe, model, facts, context.hub_dir)
        notes += layout_notes
    tokens = request.context or longest_request(recipe, model)
    fits = {host: memory.fit(recipe, model, known["memory"], tokens) for host, known in facts.items()} if model else {}
    downloads = {host: _download(recipe, host_facts, context.hub_dir) for host, host_facts in facts.items()}
    prediction = predicted(recipe, request, context.constants, model)
    if model and prediction is None:
        notes.append(f"no prediction of speed: the drafter of recipe {recipe['name']} has no drafter.architecture")
    better = better_recipes(recipe, prediction, facts, request, context) if prediction else []
    refusals = [
        *unreadable,
        *(refusal for host, fit in fits.items() for refusal in too_small(name, host, recipe, fit, request)),
        *(refusal for host, size in downloads.items() for refusal in _disk(host, size, facts[host], context.hub_dir)),
        *speed_floor.too_slow(name, prediction, request.min_speed, better),
    ]
    notes += _reported(recipe, predicted(recipe, ForecastRequest(), context.constants, model))
    return Forecast(
        name=name,
        hosts=list(facts),
        fits=fits,
        model=model,
        prediction=prediction,
        download_bytes=max(downloads.values(), default=0),
        refusals=refusals,
        notes=notes,
        better=better,
    )


def longest_request(recipe: Document, model: MemoryModel | None) -> int:
    """Return the tokens of the longest request that the engine accepts: of the recipe, or else of the model."""
    longest = flag_names.positive_number(recipe["args"], "max-model-len")
    return longest or (model.architecture.positions if model else 1)


def predicted(
    recipe: Document, request: ForecastRequest, constants: Constants | None = None, model: MemoryModel | None = None
) -> Prediction | None:
    """Return the speed of each sequence, or None if the recipe does not name what it loads.

    `model` replaces the model that the recipe describes.
    """
    model = model or memory.model_of(recipe)
    drafter = recipe.get("drafter")
    if model is None or (drafter and model.drafter is None):
        return None
    load = Load(
        context=request.context or USUAL_CONTEXT,
        streams=request.streams,
        tensor_parallel=recipe["topology"]["tensor_parallel"],
        kv_width=model.kv_width,
        drafter=Drafter(model.drafter, drafter["speculative_tokens"], 0.0) if drafter and model.drafter else None,
    )
    measured = measured_acceptance(drafter) if drafter else []
    return roofline.predict(model.architecture, model.layout, load, constants, measured)


def measured_acceptance(drafter: Document) -> list[float]:
    """Return the acceptances that were measured with this drafter's number of tokens."""
    tokens = drafter["speculative_tokens"]
    return [entry["rate"] for entry in drafter.get("acceptance", []) if entry.get("tokens", tokens) == tokens]


def better_recipes(
    recipe: Document,
    prediction: Prediction,
    facts: Mapping[str, Facts],
    request: ForecastRequest,
    context: ForecastContext,
) -> list[str]:
    """Return a line for each recommended recipe that fits the same hosts.

    These are the fastest recipe of the same model, if it is faster by FASTER, and the fastest of the same family, if it
    is faster by MUCH_FASTER.
    """
    own, nodes = recipe["model"]["architecture"], recipe["topology"]["nodes"]
    family = architecture.load(own).family
    same_model, same_family = [], []
    for other in context.catalogue:
        speed = predicted(other, request, context.constants)
        if speed is None or other["name"] == recipe["name"] or other["topology"]["nodes"] != nodes:
            continue
        if not all(_fits(other, host_facts, request) for host_facts in facts.values()):
            continue
        gain = speed.slow.tokens_per_s / prediction.slow.tokens_per_s
        if other["model"]["architecture"] == own and gain >= FASTER:
            same_model.append((gain, other, speed, "the same model"))
        elif architecture.load(other["model"]["architecture"]).family == family and gain >= MUCH_FASTER:
            same_family.append((gain, other, speed, f"another model of the family, {other['model']['repository']}"))
    best = [max(candidates, key=lambda entry: entry[0]) for candidates in (same_model, same_family) if candidates]
    return [f"{other['name']}: {speed}, {gain:.1f} times as fast; {which}" for gain, other, speed, which in best]


def _fits(recipe: Document, facts: Facts, request: ForecastRequest) -> bool:
    model = memory.model_of(recipe)
    if model is None or any(memory.too_little_refusal("", "", recipe, facts["memory"])):
        return False
    context = request.context or flag_names.positive_number(recipe["args"], "max-model-len") or USUAL_CONTEXT
    return memory.fit(recipe, model, facts["memory"], context).requests >= _required_requests(request)


def _required_requests(request: ForecastRequest) -> int:
    """Return how many requests must fit at once. Without a context, streams may wait for each other."""
    return request.streams if request.context else 1


def sources(recipe: Document) -> Iterator[Document]:
    """Yield the model, then the drafter if there is one."""
    yield recipe["model"]
    if "drafter" in recipe:
        yield recipe["drafter"]


def folders(recipe: Document, hub_dir: str) -> list[str]:
    """Return the snapshot folders of the sources whose commit is known."""
    return [snapshot(hub_dir, source) for source in sources(recipe) if "revision" in source]


def _unreadable(host: str, facts: Facts) -> Iterator[Refusal]:
    for weights in facts.get("weights", {}).values():
        if weights and weights["error"]:
            yield BAD_WEIGHTS(
                what=f"{host}: {weights['error']}",
                expected="complete safetensors files",
                fix="remove that file and fetch it again at the pinned commit.",
            )


def _as_filed(
    recipe: Document, model: MemoryModel, facts: Mapping[str, Facts], hub_dir: str
) -> tuple[MemoryModel, list[str]]:
    """Return the model with the layout of the files on the head, and notes about it.

    The layout stays the recipe's if there are no files, if they belong to another architecture, or if loading changes
    the weights.
    """
    named = recipe["model"].get("checkpoint", recipe["model"]["layout"])
    folder = next(iter(folders({"model": recipe["model"]}, hub_dir)), "")
    weights = next(iter(facts.values())).get("weights", {}).get(folder)
    if not weights or not weights["files"]:
        return model, []
    checkpoint = checkpoint_layout.read(model.architecture, weights)
    if checkpoint.doubts:
        doubts = "; ".join(checkpoint.doubts)
        return model, [f"the files are not {model.architecture.name}: {doubts}; the recipe's layout is used"]
    notes = checkpoint_layout.differences(checkpoint, named)
    if "checkpoint" in recipe["model"]:
        return model, notes
    parts = ", ".join(f"{part} {checkpoint_layout.width_name(width)}" for part, width in checkpoint.layout.items())
    notes.append(f"layout read from {weights['files']} of its files, {weights['bytes'] / GB:.1f} GB: {parts}")
    return replace(model, architecture=checkpoint.architecture, layout=checkpoint.layout), notes


def _download(recipe: Document, facts: Facts, hub_dir: str) -> int:
    """Return the bytes of the model and the drafter that the host does not have yet."""
    total = 0
    for source in sources(recipe):
        present = "revision" in source and facts.get("paths", {}).get(snapshot(hub_dir, source))
        total += 0 if present else _size(recipe, source)
    return total


def _size(recipe: Document, source: Document) -> int:
    if source is recipe["model"]:
        return memory.file_bytes(recipe)
    if "size_bytes" in source or "architecture" not in source:
        return int(source.get("size_bytes", 0))
    return int(sum(architecture.load(source["architecture"]).stored_weights().values()) * roofline.UNQUANTISED)


def too_small(name: str, host: str, recipe: Document, fit: Fit, request: ForecastRequest) -> Iterator[Refusal]:
    """Refuse a start whose cache does not hold the requests of the load."""
    required = _required_requests(request)
    if fit.requests < required:
        load = f"{required} requests of {fit.context} tokens" if required > 1 else f"{fit.context} tokens"
        cache, budget = gib(required * fit.request), memory.budget_key(recipe)
        yield NO_ROOM_FOR_THE_CACHE(
            what=f"{name} on {host}: weights take {gib(fit.weights)} and the workspace {gib(fit.workspace)} of the "
            f"{gib(fit.reserved)} that the engine reserves, which leaves {gib(max(0, fit.room))} of cache; "
            f"{load} need {cache}",
            expected=f"{cache} of cache",
            fix=_fix_of_room(fit)
            if fit.room < 0
            else f"raise overrides.memory.{budget}, or lower overrides.args.max-model-len"
            f"{', --context or --streams' if request.context else ''}.",
        )


def _fix_of_room(fit: Fit) -> str:
    """Return the fix if the weights alone are too large: a share that is large enough, or another recipe."""
    share = (fit.weights + fit.workspace + fit.request) / fit.total
    if share < LARGEST_SHARE and (share * fit.total) + fit.floor <= fit.available:
        return f"overrides.memory.utilization: {share + 0.005:.2f} or more."
    return (
        f"a recipe with smaller weights, or one for two Sparks (vllm-spark recipes): {gib(fit.total)} of memory do not "
        "hold this one beside the host."
    )


def _disk(host: str, size: int, facts: Facts, hub_dir: str) -> Iterator[Refusal]:
    disk = facts.get("disks", {}).get(hub_dir)
    if disk and size > disk["free"]:
        yield TOO_LITTLE_DISK(
            what=f"{host} has {disk['free'] / GB:.1f} GB free for {hub_dir}, and the download is {size / GB:.1f} GB",
            expected="free space for the model, the drafter and the image",
            fix="delete models that no deployment uses, or set vllm_hub_dir to a larger disk.",
        )


def _reported(recipe: Document, prediction: Prediction | None) -> Iterator[str]:
    """Yield a note for each speed that the recipe's sources report. It flags a speed above the physical limit."""
    for entry in recipe.get("expected", []):
        if entry["metric"] != "decode" or entry["unit"] != "tok/s":
            continue
        note = f"reported: {entry['value']} tok/s, {entry['load']} ({entry['source']})"
        if prediction and entry["load"].startswith(ONE_STREAM) and entry["value"] > _limit(recipe, prediction):
            limit = "the speed at 100 % acceptance" if "drafter" in recipe else "the speed of reading the weights"
            note += f"; that is above {limit}, {_limit(recipe, prediction):.1f} tok/s: it measures something else"
        yield note


def _limit(recipe: Document, prediction: Prediction) -> float:
    """Return the speed that no report can exceed: every drafted token accepted, or the interval's upper end."""
    return prediction.ceiling if "drafter" in recipe else prediction.high


def catalogue(folders: Sequence[Path]) -> tuple[Document, ...]:
    """Return the recipes that a forecast compares with.

    They are valid, name what they load, and have no refused known issue.
    """
    recipes = []
    for file in loader.names(folders).values():
        try:
            document = loader.read(file).document
            # A recipe is judged here and not a deployment of it: the loopback address needs no API key.
            subject = known_issues.Subject(document, document.get("secrets", ()), LOOPBACK)
            if memory.model_of(document) and not any(known_issues.refusals(subject, ())):
                recipes.append(document)
        except RefusedError:
            continue  # `vllm-spark check` reports its faults
    return tuple(recipes)
