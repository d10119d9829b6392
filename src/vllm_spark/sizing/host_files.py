"""The files of a recipe's model and drafter: which are on the host, their layout, and the room for the others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import DiskFacts, Document, WeightFacts
from vllm_spark.core.units import GB
from vllm_spark.recipe import architecture
from vllm_spark.recipe.hub_cache import snapshot
from vllm_spark.sizing import checkpoint_layout, layout, memory
from vllm_spark.sizing.memory import MemoryModel

BAD_WEIGHTS = register("bad-weights", runbook="model-missing")
TOO_LITTLE_DISK = register("too-little-disk", runbook="plan-no-go")


def sources(recipe: Document) -> Iterator[Document]:
    """Yield the model, then the drafter if its files are others: a model's own head is in the model's files."""
    yield recipe["model"]
    if "drafter" in recipe and recipe["drafter"]["repository"] != recipe["model"]["repository"]:
        yield recipe["drafter"]


def folders(recipe: Document, hub_dir: str) -> list[str]:
    """Return the snapshot folders of the sources whose commit is known."""
    return [snapshot(hub_dir, source) for source in sources(recipe) if "revision" in source]


def unreadable(host: str, found: Mapping[str, WeightFacts | None]) -> Iterator[Refusal]:
    for weights in found.values():
        if weights and weights["error"]:
            yield BAD_WEIGHTS(
                what=f"{host}: {weights['error']}",
                expected="complete safetensors files",
                fix="remove that file and fetch it again at the pinned commit.",
            )


def as_filed(
    recipe: Document, model: MemoryModel, found: Mapping[str, WeightFacts | None], hub_dir: str
) -> tuple[MemoryModel, list[str]]:
    """Return the model with the layout of the files on the head, and notes about it. `found`: folder -> its weights.

    The layout stays the recipe's if there are no files, if they belong to another architecture, or if loading changes
    the weights.
    """
    named = recipe["model"].get("checkpoint", recipe["model"]["layout"])
    folder = next(iter(folders({"model": recipe["model"]}, hub_dir)), "")
    weights = found.get(folder)
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


def download(recipe: Document, paths: Mapping[str, bool], hub_dir: str) -> int:
    """Return the bytes of the model and the drafter whose folder is not on the host yet. `paths`: folder -> it is."""
    total = 0
    for source in sources(recipe):
        present = "revision" in source and paths.get(snapshot(hub_dir, source))
        total += 0 if present else size(recipe, source)
    return total


def size(recipe: Document, source: Document) -> int:
    if source is recipe["model"]:
        return memory.file_bytes(recipe)
    if "size_bytes" in source or "architecture" not in source:
        return int(source.get("size_bytes", 0))
    filed = architecture.of_recipe(recipe, source["architecture"]).stored_weights()
    return int(sum(filed.values()) * layout.UNQUANTISED)


def too_little_disk(host: str, size: int, disk: DiskFacts | None, hub_dir: str) -> Iterator[Refusal]:
    if disk and size > disk["free"]:
        yield TOO_LITTLE_DISK(
            what=f"{host} has {disk['free'] / GB:.1f} GB free for {hub_dir}, and the download is {size / GB:.1f} GB",
            expected="free space for the model, the drafter and the image",
            fix="delete models that no deployment uses, or set vllm_hub_dir to a larger disk.",
        )
