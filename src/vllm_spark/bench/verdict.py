"""Verdict on a run: against the run before, the forecast, and the expected figures and the evidence of its recipe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_spark.bench import compare, evidence, key, references, verdict_sentence
from vllm_spark.bench.compare import Comparison, Row
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.verdict_sentence import Reference
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import Figure
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe

FOLDER = paths.REPORTS / "bench"
State = Literal["good", "worse", "worthless", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict. `state` is unknown if nothing could be judged. `baseline` is the file of the run before, or empty."""

    state: State
    sentence: str
    baseline: str
    changed: tuple[str, ...]
    before: tuple[Row, ...]
    forecast: tuple[Row, ...]
    expected: tuple[Row, ...]
    evidence: tuple[Row, ...]
    causes: dict[str, str]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verdict(run: Evidence, baseline: Evidence | None) -> Verdict:
    """Return the verdict on a run. Without a baseline the forecast and the recipe's figures and evidence decide."""
    loaded, notes = recipe_of(run), list(run.notes)
    document = loaded.document if loaded else None
    if document is None:
        notes.append(f"recipe {run.run['subject']['recipe'] or 'unknown'} is not in the catalogue: no forecast")
    if baseline is None:
        notes.append("no run before with the same key")
    compared = compare.compare(baseline, run) if baseline else None
    forecast = tuple(references.forecast_rows(document, run)) if document else ()
    expected = tuple(references.expected_rows(document, run)) if document else ()
    measured = _evidence_rows(loaded, run, notes) if loaded else ()
    before = compared.rows if compared else ()
    if compared and not compared.comparable:
        notes.append("the keys differ: what is worse may be the effect of the change")
    spoiled = {name: cell for name, cell in run.cells.items() if compare.worthless(cell)}
    warned = {name: compare.faults(cell) for name, cell in run.cells.items() if name not in spoiled}
    notes += [f"{name}: warning, {text}" for name, text in warned.items() if text]
    causes = compared.causes if compared else {}
    state = _state(bool(spoiled), [*before, *forecast, *expected, *measured])
    differing = () if compared is None or compared.comparable else [text.partition(" ")[0] for text in compared.changed]
    names = ("the other run", "as in the other run") if differing else ("the run before", "as before")
    against = (
        Reference(*names, before),
        Reference("the forecast", "as forecast", forecast),
        Reference("the recipe", "as the recipe expects", expected),
        Reference("the recipe's evidence", "as in the recipe's evidence", measured),
    )
    sentences = {
        "worthless": lambda: verdict_sentence.worthless([*spoiled.values()], len(run.cells)),
        "worse": lambda: verdict_sentence.worse(against, causes),
        "good": lambda: verdict_sentence.good(against, differing),
        "unknown": lambda: verdict_sentence.unknown(against),
    }
    return Verdict(
        state=state,
        sentence=sentences[state](),
        baseline=str(baseline.file) if baseline else "",
        changed=compared.changed if compared else (),
        before=before,
        forecast=forecast,
        expected=expected,
        evidence=measured,
        causes=causes,
        notes=tuple(notes),
    )


def _evidence_rows(loaded: Recipe, run: Evidence, notes: list[str]) -> tuple[Row, ...]:
    """Return the rows against the recipe's evidence. A file of it that is broken is a note: it says nothing here."""
    try:
        return tuple(references.evidence_rows(loaded, run, paths.RECIPES))
    except RefusedError as error:
        notes += [f"the recipe's evidence is not compared: {refusal.what}" for refusal in error.refusals]
        return ()


def previous(run: Evidence, folder: Path) -> Evidence | None:
    """Return the newest run of a folder that is older than `run` and has its profile and a comparable key."""
    older = [
        other
        for other in readable(folder)
        if other.run["id"] != run.run["id"]
        and other.run["started"] < run.run["started"]
        and other.run["profile"].get("name") == run.run["profile"].get("name")
        and key.comparable(other.run["key"], run.run["key"])
    ]
    return max(older, key=lambda other: other.run["started"], default=None)


def closing(path: Path) -> list[str]:
    """Return the last lines of a run: its verdict against the run before in its folder, its file, the next command."""
    run = evidence.read(path)
    shown = os.path.relpath(path)
    sentence = verdict(run, previous(run, path.parent)).sentence
    return [sentence, f"evidence: {shown}", f"Next: vllm-spark bench report {shown}"]


def latest(folder: Path, deployment: str) -> str:
    """Return a line about the newest run of a deployment, or an empty text without one."""
    own = [run for run in readable(folder) if run.run["subject"]["deployment"] == deployment]
    run = max(own, key=lambda each: each.run["started"], default=None)
    if run is None:
        return ""
    state = verdict(run, previous(run, folder)).state
    name = run.run["profile"].get("name", "unnamed profile")
    return f"last bench: {name}, {run.run['started'][:10]}, {_leading(run)}, verdict {state}"


def latest_lines(deployments: Iterable[str], folder: Path = FOLDER) -> list[str]:
    """Return the line of the newest run of each deployment that has one, each once, in their order."""
    lines = {name: latest(folder, name) for name in deployments}
    return [f"{name}  {line}" for name, line in lines.items() if line]


def readable(folder: Path) -> list[Evidence]:
    """Return the evidence of a folder. A file that is broken is left out: it says nothing about another one."""
    return list(_readable(folder))


def _readable(folder: Path) -> Iterator[Evidence]:
    for file in sorted(folder.glob(f"*{evidence.SUFFIX}")):
        try:
            yield evidence.read(file)
        except RefusedError:
            continue


def _leading(run: Evidence) -> str:
    """Return the first figure of each kind that the unchanged server's cells of one stream are measured for."""
    shown: dict[str, str] = {}
    for cell in run.cells.values():
        if cell["cell"]["streams"] > 1 or cell["cell"]["server"] or compare.worthless(cell):
            continue
        for metric in leading_metrics(cell["cell"]):
            if metric in cell["figures"]:
                shown.setdefault(metric, _shown(metric, cell["figures"][metric]))
    return ", ".join(shown.values()) or "decode not measured"


def _shown(metric: str, figure: Figure) -> str:
    spread = "unknown" if figure["spread"] is None else f"{figure['spread']:.1%}".replace("%", " %")
    return f"{metric.replace('_', ' ')} {figure['median']:.1f} {figure['unit']} (spread {spread})"


def recipe(run: Evidence) -> Document | None:
    """Return the document of the recipe of a run; None as `recipe_of`."""
    loaded = recipe_of(run)
    return loaded.document if loaded else None


def recipe_of(run: Evidence) -> Recipe | None:
    """Return the recipe of a run; None without one, and for a recipe that the catalogue does not have."""
    name, folders = run.run["subject"]["recipe"], [paths.RECIPES]
    return loader.load(name, folders) if name in loader.names(folders) else None


def _state(spoiled: bool, rows: Sequence[Row]) -> State:
    """Return the state. A run is good only by figures that its cells are measured for."""
    if spoiled:
        return "worthless"
    if any(row.judgement == "worse" for row in rows):
        return "worse"
    return "good" if any(row.leading and row.judgement in ("same", "better") for row in rows) else "unknown"


def compared_state(result: Comparison) -> State:
    """Return the state of a comparison alone."""
    if any(row.judgement == "worthless" for row in result.rows):
        return "worthless"
    return _state(False, result.rows)
