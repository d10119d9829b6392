"""Evidence of the bench that a recipe names: its files, and whether they belong to the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.bench import evidence, key
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import documents
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.node.bench.faults import CAPPED_GPU as GPU
from vllm_spark.recipe import derived_image, loader
from vllm_spark.recipe.loader import Recipe

FOREIGN = register("evidence-foreign", runbook="recipe-refused")
NO_DIFFERENCE = register("evidence-no-difference", runbook="recipe-refused")
NO_REPORT = register("evidence-no-report", runbook="recipe-refused")

# Differences that nothing can check: a launch depends on the hosts of its deployment.
NOT_CHECKED = {"launch"}
NOT_RECORDED = "not recorded"
MAX_REPORT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EvidenceGroup:
    """An entry of `evidence` with files of the bench. `report` is empty if the entry names none. `differs` has a
    sentence by part of the key."""

    place: str
    names: tuple[str, ...]
    runs: tuple[Evidence, ...]
    report: str
    differs: Mapping[str, str]


def groups(recipe: Recipe, folder: Path, *, differing: bool = True) -> list[EvidenceGroup]:
    """Return the entries with files of the bench. `folder` is the recipe's.

    `differing`: also those that differ from the recipe on a Spark; their files are not read otherwise. Raises
    RefusedError for a broken file.
    """
    return [
        EvidenceGroup(
            place=f"evidence[{number}]",
            names=tuple(entry["bench"]),
            runs=tuple(evidence.read(loader.evidence_file(path, folder)) for path in entry["bench"]),
            report=entry.get("report", ""),
            differs=entry.get("differs", {}),
        )
        for number, entry in enumerate(recipe.document.get("evidence", []))
        if "bench" in entry and (differing or "differs" not in entry)
    ]


def refusals(recipe: Recipe, folder: Path) -> list[Refusal]:
    """Return everything that is wrong with the evidence of a recipe."""
    try:
        return [refusal for group in groups(recipe, folder) for refusal in _of_group(recipe, group, folder)]
    except RefusedError as error:
        return list(error.refusals)


def differences(recipe: Recipe, run: Evidence) -> dict[str, tuple[str, str]]:
    """Return part -> (measured, the recipe's) of everything in which a run differs from a recipe on a Spark.

    A part that the run does not record does not differ, apart from the GPU: figures of an unknown one are not those of
    a Spark.
    """
    measured, subject, document = run.run["key"], run.run["subject"], recipe.document
    model = document["model"]
    parts = {
        "recipe": (subject["recipe"], recipe.name),
        "model": (measured["model"], model["repository"]),
        "commit": (measured["commit"], model.get("revision", "")),
        "layout": (measured["layout"], key.layout(model)),
        "engine": (subject["engine_version"], document["engine"]["version"]),
        "topology": (measured["topology"], key.topology(document)),
    }
    found = {part: pair for part, pair in parts.items() if all(pair) and pair[0] != pair[1]}
    if measured["image"] and not _is_image(recipe, measured["image"]):
        found["image"] = measured["image"], _image(recipe)
    if any(GPU not in name for name in gpus(run)):
        found["gpu"] = ", ".join(gpus(run)), GPU
    return found


def gpus(run: Evidence) -> list[str]:
    """Return the GPU of each host that the run has facts of, each once."""
    return list(dict.fromkeys(facts.get("gpu") or NOT_RECORDED for facts in run.run["host"].values())) or [NOT_RECORDED]


def _of_group(recipe: Recipe, group: EvidenceGroup, folder: Path) -> Iterator[Refusal]:
    file = f"{folder.name}/{recipe.name}.yml"
    observed: set[str] = set()
    for name, run in zip(group.names, group.runs, strict=True):
        found = differences(recipe, run)
        observed |= set(found)
        for part, (measured, expected) in found.items():
            if part not in group.differs:
                yield FOREIGN(
                    what=f"{file}: {group.place}: {name} has {part} {measured}",
                    expected=f"{expected}, or the difference in words",
                    fix=f"name evidence of this recipe, or write the reason at {group.place}.differs.{part} in {file}.",
                )
    for part in sorted(set(group.differs) - observed - NOT_CHECKED):
        yield NO_DIFFERENCE(
            what=f"{file}: {group.place}.differs.{part}: no file differs in it",
            expected=f"only {', '.join(sorted(observed | NOT_CHECKED))}",
            fix=f"delete {group.place}.differs.{part} in {file}.",
        )
    if group.report:
        yield from _report(file, group, folder)


def _report(file: str, group: EvidenceGroup, folder: Path) -> Iterator[Refusal]:
    """Yield a refusal if the report is missing, or is that of other runs."""
    path = loader.evidence_file(group.report, folder)
    try:
        text = documents.read_text(path, MAX_REPORT_BYTES)
    except DocumentError as error:
        text, seen = "", error.fault.what
    else:
        seen = "other runs"
    missing = [run.run["id"] for run in group.runs if run.run["id"] not in text]
    if missing:
        yield NO_REPORT(
            what=f"{file}: {group.place}.report: {group.report}: {seen}",
            expected=f"the report of run {', '.join(missing)}",
            fix=Fix(report_command(group)),
        )


def report_command(group: EvidenceGroup) -> str:
    """Return the command that writes the report of a group, from the folder above the recipes'."""
    return f"vllm-spark bench report {' '.join(group.names)} -o {group.report}"


def _is_image(recipe: Recipe, measured: str) -> bool:
    """Return True for an image of a recipe. Without a digest in the recipe the lock file of an inventory decides, so
    every digest is possible."""
    image = recipe.document["image"]
    repository, _, digest = measured.rpartition("@")
    if "digest" not in image:
        return repository in ("", image["repository"]) and digest.startswith("sha256:")
    if derived := derived_image.derived_image(recipe.document, recipe.files):
        return measured == derived.image
    return digest == image["digest"] and repository in ("", image["repository"])


def _image(recipe: Recipe) -> str:
    """Return the image of a recipe for a message."""
    image = recipe.document["image"]
    if "digest" not in image:
        return f"{image['repository']}@sha256:…"
    derived = derived_image.derived_image(recipe.document, recipe.files)
    return derived.image if derived else f"{image['repository']}@{image['digest']}"
