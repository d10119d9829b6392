"""The constants of the owner's Sparks, from runs of the bench: the inverse of the forecast. Pure but for the file.

Runs of one recipe on the same Sparks give one server of the site's file (sizing.site_constants).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.bench import compare, evidence
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB
from vllm_spark.node import state_file
from vllm_spark.node.bench.faults import CAPPED_GPU as GPU
from vllm_spark.node.bench.records import PROTOCOL, CellRecord
from vllm_spark.sizing import burst, constants, factors, forecast, memory, roofline, site_constants
from vllm_spark.sizing.burst import Requests
from vllm_spark.sizing.factors import Factor, Observation
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.memory import MemoryModel

HEAD = """\
# What the bench measured on these Sparks. `plan` reads it beside the toolkit's constants (docs/operations/bench.md).
# bench.yml writes it; `vllm-spark bench constants FILE… --into THIS` writes it again from evidence.
---
"""

# A shorter prompt's time to the first token is mostly network and start of the request.
LEAST_PROMPT = 1024
FIRST = "first token"


@dataclass(frozen=True, slots=True)
class Found:
    """The entry of a server, and why something of its runs is not in it."""

    hosts: str
    recipe: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def of_runs(runs: Sequence[Evidence], recipe: Document) -> Found:
    """Return what runs of one recipe on the same Sparks give. Later runs replace cells of earlier ones."""
    key, name = runs[-1].run["key"], recipe["name"]
    usable = [run for run in runs if not unusable(run)]
    notes = [f"{run.file.name}: {reason}" for run in runs if (reason := unusable(run))]
    cells = {cell["cell"]["id"]: cell for run in usable for cell in run.cells.values() if not compare.worthless(cell)}
    if not cells:
        return Found(key["hosts"], name, notes=notes)
    try:
        fitted, refused = _fitted(list(observations(recipe, cells.values())))
    except RefusedError as error:
        # The recipe names an architecture that has no file.
        fitted, refused = {}, list(map(str, error.refusals))
    entry = {
        "evidence": [run.run["id"] for run in usable],
        **fitted,
        **_acceptance(recipe, cells.values()),
        **_loading_peak(cells.values()),
    }
    return Found(key["hosts"], name, entry if len(entry) > 1 else {}, [*notes, *refused])


def unusable(run: Evidence) -> str:
    """Return why a run says nothing about a Spark under this protocol, or an empty text."""
    protocol = run.run["key"]["protocol"].partition("-")[0]
    if protocol != str(PROTOCOL):
        return f"protocol {protocol or 'unknown'} — expected: {PROTOCOL}. Fix: measure again"
    foreign = {gpu for host in run.run["host"].values() if GPU not in (gpu := host.get("gpu", GPU))}
    return f"GPU {', '.join(sorted(foreign))} — expected: NVIDIA {GPU}. Fix: evidence of a Spark" if foreign else ""


def observations(recipe: Document, cells: Iterable[CellRecord]) -> Iterator[Observation]:
    """Yield the decode of each cell, and the first token of long prompts. Cells that change the server are left out."""
    model = memory.model_of(recipe)
    for cell in cells if model else ():
        if model and not cell["cell"]["server"] and not cell["cell"]["sampling"].get("temperature"):
            yield from _of_cell(recipe, model, cell)


def _of_cell(recipe: Document, model: MemoryModel, record: CellRecord) -> Iterator[Observation]:
    cell, figures = record["cell"], record["figures"]
    prompt = cell["depth"] + cell["prompt"]
    load = forecast.load_of(recipe, ForecastRequest(prompt + cell["output"] // 2, cell["streams"]), model)
    if load is None or load.streams < cell["streams"]:
        return
    if load.drafter:
        if "acceptance" not in figures:
            return
        load = replace(load, drafter=replace(load.drafter, acceptance=float(figures["acceptance"]["median"])))
    shape, widths = model.architecture, model.layout
    if "decode" in figures:
        yield Observation(
            "decode",
            float(figures["decode"]["median"]),
            lambda known: roofline.step(shape, widths, load, known).tokens_per_s,
        )
    if "first_token" in figures and prompt >= LEAST_PROMPT:
        requests = Requests(cell["streams"], prompt, 2, batched=load.batched)
        seconds = float(figures["first_token"]["median"]) / 1000
        yield Observation(FIRST, seconds, lambda known: burst.serve(shape, widths, load, requests, known).first_token_s)


def _fitted(seen: Sequence[Observation]) -> tuple[dict[str, Any], list[str]]:
    """Return constants and intervals of a server, and why there are none. One that no Spark can have refuses all."""
    toolkit = constants.constants_of({})
    found = factors.measured(toolkit, seen) if seen else []
    refused = [
        f"{fault[0]} — expected: {fault[1]}. Fix: look for a wrong layout of the recipe, or prompts that the "
        "cache held; no constant of these runs is kept"
        for one in found
        if (fault := site_constants.impossible(one.kind.leading, one.constant))
    ]
    if refused or not found:
        return {}, refused
    own = factors.applied(toolkit, {one.kind.leading: one.value for one in found})
    groups = {
        "speed": [one for one in seen if one.metric != FIRST],
        "first_token": [one for one in seen if one.metric == FIRST],
    }
    widths = {name: factors.width(own, group, len(found)) for name, group in groups.items()}
    return {
        "constants": {one.kind.leading: _constant(one, len(seen)) for one in found},
        "intervals": {name: round(min(1.0, width), 3) for name, width in widths.items() if width},
    }, []


def _constant(factor: Factor, cells: int) -> dict[str, Any]:
    return {
        "value": _rounded(factor.constant),
        "unit": factor.kind.unit,
        "reference": factor.reference,
        "spread": round(factor.spread, 3),
        "cells": cells,
    }


def _rounded(value: float) -> float:
    """Return a value with four significant digits."""
    return round(value, 3 - math.floor(math.log10(value)))


def _acceptance(recipe: Document, cells: Iterable[CellRecord]) -> dict[str, Any]:
    """Return the acceptance of the drafter by kind of text, with its number of tokens: of the cells with one stream."""
    if "drafter" not in recipe:
        return {}
    found: dict[tuple[str, int], float] = {}
    for record in cells:
        cell, figures = record["cell"], record["figures"]
        tokens = int(cell["server"].get("speculative_tokens", recipe["drafter"]["speculative_tokens"]))
        if "acceptance" in figures and cell["streams"] == 1 and not cell["sampling"].get("temperature"):
            found.setdefault((cell["corpus"], tokens), round(float(figures["acceptance"]["median"]), 4))
    rows = [{"load": load, "tokens": tokens, "rate": rate} for (load, tokens), rate in found.items()]
    return {"acceptance": rows} if rows else {}


def _loading_peak(cells: Iterable[CellRecord]) -> dict[str, Any]:
    """Return the largest memory of a start, above that before it (the profile `start`)."""
    starts = [record["figures"] for record in cells if "start" in record["cell"]["server"]]
    peak = max((float(figures["memory"]["median"]) for figures in starts if "memory" in figures), default=0.0)
    return {"loading_peak_bytes": int(peak * GIB)} if peak > 0 else {}


def write(file: Path, found: Iterable[Found]) -> list[str]:
    """Put servers into a site's file, and return lines about what it has now.

    What other runs found there stays: other servers, and of the same server what these runs do not have. Raises
    RefusedError for a file that is broken or of another version; it stays as it is.
    """
    site = site_constants.read_document(file) if file.exists() else _empty()
    lines: list[str] = []
    for one in found:
        place = f"{one.recipe} on {one.hosts}"
        lines += [f"{place}: {note}" for note in one.notes]
        if one.entry:
            recipes = site["servers"].setdefault(one.hosts, {})
            recipes[one.recipe] = _joined(recipes.get(one.recipe, {}), one.entry)
            lines.append(f"{place}: {', '.join(sorted(one.entry.keys() - {'evidence'}))} are in {file}")
    text = HEAD + yaml.safe_dump(site, sort_keys=True, allow_unicode=True, width=120)
    if any(one.entry for one in found) and (not file.exists() or file.read_text(encoding="utf-8") != text):
        file.parent.mkdir(parents=True, exist_ok=True)
        state_file.replace_file(file, text)
    return lines


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {**old, **new, "evidence": list(dict.fromkeys([*old.get("evidence", []), *new["evidence"]]))}


def _empty() -> dict[str, Any]:
    return {"schema": site_constants.SCHEMA, "protocol": PROTOCOL, "servers": {}}


def read_runs(files: Iterable[Path]) -> tuple[list[Evidence], list[str]]:
    """Return the runs of files by time, and a line for each file that is no evidence."""
    runs: list[Evidence] = []
    lines: list[str] = []
    for file in files:
        try:
            runs.append(evidence.read(file))
        except RefusedError as error:
            lines += map(str, error.refusals)
    return evidence.oldest_first(runs), lines


def servers(runs: Sequence[Evidence], recipe_of: Callable[[Evidence], Document | None]) -> Iterator[Found]:
    """Yield what the runs give, by Sparks and recipe. A run without a recipe says nothing that a forecast could use."""
    groups: dict[tuple[str, str], list[Evidence]] = {}
    for run in runs:
        groups.setdefault((run.run["key"]["hosts"], run.run["subject"]["recipe"]), []).append(run)
    for (hosts, name), members in groups.items():
        recipe = recipe_of(members[-1])
        if recipe is None:
            yield Found(
                hosts, name or "a server without a recipe", notes=["no recipe of this name — expected: a recipe"]
            )
        else:
            yield of_runs(members, recipe)
