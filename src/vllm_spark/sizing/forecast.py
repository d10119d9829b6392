"""Memory, disk and speed of a recipe on the boxes that it would run on, before anything is downloaded: go or no-go.
Pure, but for `catalogue`, which reads recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document, Facts
from vllm_spark.core.units import GB, gib
from vllm_spark.inventory.spec import SiteSettings
from vllm_spark.recipe import architecture, known_issues, loader
from vllm_spark.recipe.hub_cache import snapshot
from vllm_spark.sizing import checkpoint_layout, memory, roofline
from vllm_spark.sizing.memory import Fit, MemoryModel
from vllm_spark.sizing.roofline import Constants, Drafter, Load, Prediction

BAD_WEIGHTS = register("bad-weights", runbook="model-missing")
NO_ROOM_FOR_THE_CACHE = register("no-room-for-the-cache", runbook="plan-no-go")
TOO_LITTLE_DISK = register("too-little-disk", runbook="plan-no-go")


# From here on a sliding window of Gemma 4 is full, so that speed hardly depends on it.
USUAL_CONTEXT = 1024


# A recipe is called better if it is faster by more than what two operators differ by; one of another model, if it is
# faster by a lot.
FASTER, MUCH_FASTER = 1.2, 2.0

ONE_STREAM = "one stream"


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """The load to plan for: tokens of context of each sequence, and sequences at once. Without a context, memory is
    planned for the recipe's longest request and speed for a usual one."""

    context: int | None = None
    streams: int = 1


@dataclass(frozen=True, slots=True)
class ForecastContext:
    """What does not depend on the recipe: the site's paths and measured constants, and the recipes that could take its
    place."""

    hub_dir: str = SiteSettings().hub_dir
    constants: Constants = field(default_factory=Constants)
    catalogue: Sequence[Document] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is foreseen, why it cannot be, and what an operator should know besides."""

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
    name: str, recipe: Document, boxes: Mapping[str, Facts], asked: ForecastRequest, setting: ForecastContext
) -> Forecast:
    """What a deployment of this name would be on these boxes, by host, the head's first."""
    model, notes = memory.model_of(recipe), []
    if model is None:
        missing = " and ".join(f"model.{key}" for key in ("architecture", "layout") if key not in recipe["model"])
        notes.append(f"no prediction of memory and speed: recipe {recipe['name']} has no {missing}")
    broken = [refusal for host, facts in boxes.items() for refusal in _unreadable(host, facts)]
    if model and not broken:
        model, said = _as_filed(recipe, model, boxes, setting.hub_dir)
        notes += said
    context = asked.context or recipe["args"].get("max-model-len") or (model.architecture.positions if model else 1)
    fits = {host: memory.fit(recipe, model, facts["memory"], context) for host, facts in boxes.items()} if model else {}
    download = {host: _download(recipe, facts, setting.hub_dir) for host, facts in boxes.items()}
    prediction = predicted(recipe, asked, setting.constants, model)
    if model and prediction is None:
        notes.append(f"no prediction of speed: the drafter of recipe {recipe['name']} has no drafter.architecture")
    refused = [
        *broken,
        *(refusal for host, found in fits.items() for refusal in _too_small(name, host, found, asked)),
        *(refusal for host, size in download.items() for refusal in _disk(host, size, boxes[host], setting.hub_dir)),
    ]
    notes += _reported(recipe, predicted(recipe, ForecastRequest(), setting.constants, model))
    return Forecast(
        name=name,
        hosts=list(boxes),
        fits=fits,
        model=model,
        prediction=prediction,
        download_bytes=max(download.values(), default=0),
        refusals=refused,
        notes=notes,
        better=better_recipes(recipe, prediction, boxes, asked, setting) if prediction else [],
    )


def predicted(
    recipe: Document, asked: ForecastRequest, constants: Constants | None = None, model: MemoryModel | None = None
) -> Prediction | None:
    """The speed of each sequence, or None where the recipe does not say what it loads. `model` is what was found to be
    loaded, where somebody has looked."""
    model = model or memory.model_of(recipe)
    drafter = recipe.get("drafter")
    if model is None or (drafter and model.drafter is None):
        return None
    load = Load(
        context=asked.context or USUAL_CONTEXT,
        streams=asked.streams,
        tensor_parallel=recipe["topology"]["tensor_parallel"],
        kv_width=model.kv_width,
        drafter=Drafter(model.drafter, drafter["speculative_tokens"], 0.0) if drafter and model.drafter else None,
    )
    measured = [entry["rate"] for entry in drafter.get("acceptance", [])] if drafter else []
    return roofline.predict(model.architecture, model.layout, load, constants, measured)


def better_recipes(
    recipe: Document,
    prediction: Prediction,
    boxes: Mapping[str, Facts],
    asked: ForecastRequest,
    setting: ForecastContext,
) -> list[str]:
    """Recipes for as many Sparks that fit them: the fastest of the same model, if it is faster, and the fastest of its
    family, if it is much faster."""
    own, nodes = recipe["model"]["architecture"], recipe["topology"]["nodes"]
    family = architecture.load(own).family
    same, sister = [], []
    for other in setting.catalogue:
        speed = predicted(other, asked, setting.constants)
        if speed is None or other["name"] == recipe["name"] or other["topology"]["nodes"] != nodes:
            continue
        if not all(_fits(other, facts, asked) for facts in boxes.values()):
            continue
        gain = speed.slow.tokens_per_s / prediction.slow.tokens_per_s
        if other["model"]["architecture"] == own and gain >= FASTER:
            same.append((gain, other, speed, "the same model"))
        elif architecture.load(other["model"]["architecture"]).family == family and gain >= MUCH_FASTER:
            sister.append((gain, other, speed, f"another model of the family, {other['model']['repository']}"))
    best = [max(found, key=lambda entry: entry[0]) for found in (same, sister) if found]
    return [f"{other['name']}: {speed}, {gain:.1f} times as fast; {which}" for gain, other, speed, which in best]


def _fits(recipe: Document, facts: Facts, asked: ForecastRequest) -> bool:
    model = memory.model_of(recipe)
    if model is None or any(memory.too_little_refusal("", "", recipe, facts["memory"])):
        return False
    context = asked.context or recipe["args"].get("max-model-len", USUAL_CONTEXT)
    return memory.fit(recipe, model, facts["memory"], context).requests >= (asked.streams if asked.context else 1)


def sources(recipe: Document) -> Iterator[Document]:
    """The model, then the drafter."""
    yield recipe["model"]
    if "drafter" in recipe:
        yield recipe["drafter"]


def folders(recipe: Document, hub_dir: str) -> list[str]:
    """The snapshot folders of a recipe whose commits are known."""
    return [snapshot(hub_dir, source) for source in sources(recipe) if "revision" in source]


def _unreadable(host: str, facts: Facts) -> Iterator[Refusal]:
    for answer in facts.get("weights", {}).values():
        if answer and answer["error"]:
            yield BAD_WEIGHTS(
                what=f"{host}: {answer['error']}",
                expected="whole safetensors files",
                fix="remove that file and fetch it again at the pinned commit.",
            )


def _as_filed(
    recipe: Document, model: MemoryModel, boxes: Mapping[str, Facts], hub_dir: str
) -> tuple[MemoryModel, list[str]]:
    """The model as its files on the head hold it, and what is to say of that. Where loading changes the weights,
    the files only confirm the recipe."""
    named = recipe["model"].get("checkpoint", recipe["model"]["layout"])
    folder = next(iter(folders({"model": recipe["model"]}, hub_dir)), "")
    answer = next(iter(boxes.values())).get("weights", {}).get(folder)
    if not answer or not answer["files"]:
        return model, []
    found = checkpoint_layout.read(model.architecture, answer)
    if found.doubts:
        wrong = f"the files are not {model.architecture.name}: {'; '.join(found.doubts)}"
        return model, [f"{wrong}; the recipe's layout is used"]
    said = checkpoint_layout.differences(found, named)
    if "checkpoint" in recipe["model"]:
        return model, said
    shown = ", ".join(f"{part} {checkpoint_layout.width_name(width)}" for part, width in found.layout.items())
    said.append(f"layout read from {answer['files']} of its files, {answer['bytes'] / GB:.1f} GB: {shown}")
    return replace(model, architecture=found.architecture, layout=found.layout), said


def _download(recipe: Document, facts: Facts, hub_dir: str) -> int:
    """Bytes of the model and the drafter that this box does not have yet."""
    total = 0
    for source in sources(recipe):
        there = "revision" in source and facts.get("paths", {}).get(snapshot(hub_dir, source))
        total += 0 if there else _size(recipe, source)
    return total


def _size(recipe: Document, source: Document) -> int:
    if source is recipe["model"]:
        return memory.file_bytes(recipe)
    if "size_bytes" in source or "architecture" not in source:
        return int(source.get("size_bytes", 0))
    return int(sum(architecture.load(source["architecture"]).filed().values()) * roofline.UNQUANTISED)


def _too_small(name: str, host: str, found: Fit, asked: ForecastRequest) -> Iterator[Refusal]:
    wanted = asked.streams if asked.context else 1
    if found.requests < wanted:
        many = f"{wanted} requests of {found.context} tokens need" if wanted > 1 else f"{found.context} tokens need"
        yield NO_ROOM_FOR_THE_CACHE(
            what=f"{name} on {host}: weights take {gib(found.weights)} and the workspace {gib(found.workspace)} of the "
            f"{gib(found.reserved)} that the engine reserves, which leaves {gib(max(0, found.room))} of cache; "
            f"{many} {gib(wanted * found.request)}",
            expected="room for it",
            fix="raise overrides.memory.utilization, or lower overrides.args.max-model-len"
            f"{', --context or --streams' if asked.context else ''}.",
        )


def _disk(host: str, size: int, facts: Facts, hub_dir: str) -> Iterator[Refusal]:
    disk = facts.get("disks", {}).get(hub_dir)
    if disk and size > disk["free"]:
        yield TOO_LITTLE_DISK(
            what=f"{host} has {disk['free'] / GB:.1f} GB free for {hub_dir}, and the download is {size / GB:.1f} GB",
            expected="room for the model, the drafter and the image",
            fix="delete models that nothing serves, or set vllm_hub_dir to a larger disk.",
        )


def _reported(recipe: Document, prediction: Prediction | None) -> Iterator[str]:
    """What the recipe's sources measured, and whether it can be, by the prediction for a usual load."""
    for entry in recipe.get("expected", []):
        if entry["metric"] != "decode" or entry["unit"] != "tok/s":
            continue
        said = f"reported: {entry['value']} tok/s, {entry['load']} ({entry['source']})"
        if prediction and entry["load"].startswith(ONE_STREAM) and entry["value"] > _most(recipe, prediction):
            above = "what 100 % acceptance would give" if "drafter" in recipe else "what reading the weights allows"
            said += f"; that is above {above}, {_most(recipe, prediction):.1f} tok/s: it counts something else"
        yield said


def _most(recipe: Document, prediction: Prediction) -> float:
    """What no report can be above: every drafted token accepted; without a drafter, the interval's end."""
    return prediction.ceiling if "drafter" in recipe else prediction.high


def lines(found: Forecast, recipe: Document, asked: ForecastRequest) -> list[str]:
    """The forecast as an operator reads it."""
    verdict = "go" if found.go else f"no-go, {len(found.refusals)} reason{'s' * (len(found.refusals) > 1)}"
    said = [f"{found.name} on {'+'.join(found.hosts)}: {verdict}"]
    for host, fitted in found.fits.items():
        said += _fit_lines(host, fitted, recipe)
    said.append(_download_line(found))
    if found.prediction:
        said += _speed_lines(found, recipe, asked)
    said += [f"  {note}" for note in found.notes]
    said += [f"  better: {line}" for line in found.better]
    return said


def _fit_lines(host: str, fitted: Fit, recipe: Document) -> Iterator[str]:
    budget = recipe["memory"]
    share = "by kv_cache_bytes" if "kv_cache_bytes" in budget else f"{budget['utilization']:.2f} of {gib(fitted.total)}"
    held = f"{fitted.requests:.1f} requests of {fitted.context} tokens, {gib(fitted.request)} each"
    peak = "" if "loading_peak_bytes" in budget else "the files, before they are quantised"
    rows = [
        ("weights", fitted.weights, ""),
        ("activations and CUDA graphs", fitted.workspace, "allowance"),
        ("cache", max(0, fitted.room), held),
        ("reserved by the engine", fitted.reserved, share),
        ("peak of loading", fitted.peak, peak),
        ("kept for the box", fitted.floor, ""),
        ("available now", fitted.available, ""),
    ]
    yield f"  memory of {host}"
    for what, size, remark in rows:
        if size or what not in {"peak of loading", "activations and CUDA graphs"}:
            yield f"    {what:<28}{gib(size):>11}{'  ' + remark if remark else ''}"


def _download_line(found: Forecast) -> str:
    if not found.download_bytes:
        return "  download: nothing, the model is here"
    return f"  download: {found.download_bytes / GB:.1f} GB of model, and the image where it is not here yet"


def _speed_lines(found: Forecast, recipe: Document, asked: ForecastRequest) -> Iterator[str]:
    prediction = found.prediction
    assert prediction is not None  # noqa: S101  the caller has looked
    many = ONE_STREAM if asked.streams == 1 else f"each of {asked.streams} streams"
    yield f"  speed: {prediction}, {many}, {asked.context or USUAL_CONTEXT} tokens of context"
    if asked.streams > 1:
        yield f"  together: {prediction.slow.tokens_per_s * asked.streams:.0f} tok/s"
    yield f"  bound by {prediction.slow.bound()}"
    if "drafter" in recipe:
        low, high = (f"{share:.0%}" for share in prediction.accepted)
        measured = recipe["drafter"].get("acceptance")
        known = "measured" if measured else "of prose and of code, because nobody measured this one"
        span = low if low == high else f"{low} and {high}"
        tokens = recipe["drafter"]["speculative_tokens"]
        yield f"  drafter: {tokens} tokens a step, acceptance {span} ({known})"


def catalogue(folders: Sequence[Path]) -> tuple[Document, ...]:
    """The recipes that a forecast can compare with: good ones that say what they load, and that nothing is known
    against."""
    found = []
    for file in loader.names(folders).values():
        try:
            document = loader.read(file).document
            # A recipe is judged here and not a deployment of it: the loopback address needs no API key.
            subject = known_issues.Subject(document, document.get("secrets", ()), LOOPBACK)
            if memory.model_of(document) and not any(known_issues.refusals(subject, ())):
                found.append(document)
        except RefusedError:
            continue  # `vllm-spark check` says what is wrong with it
    return tuple(found)
