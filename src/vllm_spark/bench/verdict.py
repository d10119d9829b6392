"""Verdict on a run: against the run before, the forecast, and the expected figures and the evidence of its recipe."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_spark.bench import compare, evidence, key, references
from vllm_spark.bench.compare import Comparison, Row
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import CellRecord, Figure
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe

FOLDER = paths.REPORTS / "bench"
State = Literal["good", "worse", "worthless", "unknown"]
NOT_COMPARED = Comparison(changed=(), comparable=True, rows=(), causes={})


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


@dataclass(frozen=True, slots=True)
class Reference:
    """Rows of one reference. `name` is what a loss is measured against; `equal` ends "2 figures are …"."""

    name: str
    equal: str
    rows: Sequence[Row]


def verdict(run: Evidence, baseline: Evidence | None) -> Verdict:
    """Return the verdict on a run. Without a baseline the forecast and the recipe's figures and evidence decide."""
    loaded, notes = recipe_of(run), list(run.notes)
    if loaded is None:
        notes.append(f"recipe {run.run['subject']['recipe'] or 'unknown'} is not in the catalogue: no forecast")
    if baseline is None:
        notes.append("no run before with the same key")
    compared = compare.compare(baseline, run) if baseline else NOT_COMPARED
    forecast = tuple(references.forecast_rows(loaded.document, run)) if loaded else ()
    expected = tuple(references.expected_rows(loaded.document, run)) if loaded else ()
    measured = _evidence_rows(loaded, run, notes) if loaded else ()
    if not compared.comparable:
        notes.append("the keys differ: what is worse may be the effect of the change")
    spoiled = [cell for cell in run.cells.values() if compare.worthless(cell)]
    notes += [
        f"{name}: warning, {text}"
        for name, cell in run.cells.items()
        if not compare.worthless(cell) and (text := compare.faults(cell))
    ]
    notes += [
        f"{name}: {_shown(metric, cell['figures'][metric])}"
        for name, cell in run.cells.items()
        for metric in leading_metrics(cell["cell"])
        if metric in cell["figures"] and compare.too_noisy(cell["figures"][metric])
    ]
    differing = [] if compared.comparable else [text.partition(" ")[0] for text in compared.changed]
    names = ("the other run", "as in the other run") if differing else ("the run before", "as before")
    against = (
        Reference(*names, compared.rows),
        Reference("the forecast", "as forecast", forecast),
        Reference("the recipe", "as the recipe expects", expected),
        Reference("the recipe's evidence", "as in the recipe's evidence", measured),
    )
    state = _state(bool(spoiled), [row for reference in against for row in reference.rows])
    sentences = {
        "worthless": lambda: _worthless(spoiled, len(run.cells)),
        "worse": lambda: _worse(against, compared.causes),
        "good": lambda: _good(against, differing),
        "unknown": lambda: _unknown(against),
    }
    return Verdict(
        state=state,
        sentence=f"{state}: {sentences[state]()}.",
        baseline=str(baseline.file) if baseline else "",
        changed=compared.changed,
        before=compared.rows,
        forecast=forecast,
        expected=expected,
        evidence=measured,
        causes=compared.causes,
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
    found = []
    for file in sorted(folder.glob(f"*{evidence.SUFFIX}")):
        with suppress(RefusedError):
            found.append(evidence.read(file))
    return found


def _leading(run: Evidence) -> str:
    """Return the first figure of each kind that the unchanged server's cells of one stream are measured for, or why
    there is none."""
    shown: dict[str, str] = {}
    cells = [cell for cell in run.cells.values() if cell["cell"]["streams"] == 1 and not cell["cell"]["server"]]
    for cell in cells:
        if compare.worthless(cell):
            continue
        for metric in leading_metrics(cell["cell"]):
            if metric in cell["figures"]:
                shown.setdefault(metric, _shown(metric, cell["figures"][metric]))
    lost = next(filter(None, map(compare.worthless, cells)), "")
    return ", ".join(shown.values()) or "decode not measured" + (f" ({lost})" if lost else "")


def _shown(metric: str, figure: Figure) -> str:
    spread = "unknown" if figure["spread"] is None else f"{figure['spread']:.1%}".replace("%", " %")
    unusable = ", too noisy to use" if compare.too_noisy(figure) else ""
    return f"{metric.replace('_', ' ')} {figure['median']:.1f} {figure['unit']} (spread {spread}{unusable})"


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


# The sentence is the first thing that an owner reads. It begins with the state.


def _good(references: Sequence[Reference], differing: Collection[str]) -> str:
    """Return the sentence of a run without a loss. `differing` has the names of the parts of the key that differ."""
    judged = [text for reference in references if (text := _counts(reference))]
    keys = f". The two runs differ in {_joined(differing)}" if differing else ""
    return f"{'; '.join([*judged, *_missing(references)])}{keys}"


def _unknown(references: Sequence[Reference]) -> str:
    """Return the sentence of a run that nothing could judge."""
    reason = "there is no earlier run, forecast or expected figure to judge by"
    return "; ".join([reason, *_missing(references)])


def _worse(references: Sequence[Reference], causes: Mapping[str, str]) -> str:
    """Return the sentence of a run with a loss: its first row that is worse, and the cause."""
    lost = [(each.name, row) for each in references for row in each.rows if row.judgement == "worse"]
    # What the cell is measured for comes before what follows from it.
    name, row = next((pair for pair in lost if pair[1].leading), lost[0])
    change = f" ({row.ratio - 1:+.1%} against {name})".replace("%", " %") if row.ratio is not None else ""
    why = causes.get(row.cell) or next(iter(causes.values()), "cause unknown")
    return f"{row.metric} of {row.cell} is {row.new:.4g} {row.unit}{change}; {why}"


def _worthless(spoiled: Sequence[CellRecord], cells: int) -> str:
    """Return the sentence of a run with cells that do not count. `cells` is the number of all cells."""
    first = spoiled[0]
    verb = "has" if len(spoiled) == 1 else "have"
    reason = compare.faults(first) or first["state"]
    return f"{len(spoiled)} of {cells} cells {verb} no figures that count; {first['cell']['id']}: {reason}"


def _counts(reference: Reference) -> str:
    """Return how many figures are as the reference and how many better; empty without any."""
    same, better = (sum(row.judgement == kind for row in reference.rows) for kind in ("same", "better"))
    if not same:
        return f"{_figures(better)} better than {reference.name}" if better else ""
    return f"{_figures(same)} {reference.equal}" + (f" and {better} better" if better else "")


def _missing(references: Sequence[Reference]) -> list[str]:
    """Return a text for each reference that could not judge all figures."""
    found = [(each, [row for row in each.rows if row.judgement == "not measured"]) for each in references]
    return [f"{_figures(len(rows))} not compared with {each.name}{_why(rows)}" for each, rows in found if rows]


def _why(rows: Sequence[Row]) -> str:
    """Return why rows are not judged, with the first of them that a cell is measured for."""
    row = next((row for row in rows if row.leading), None)
    if all(each.note.startswith(compare.TOO_NOISY) for each in rows):
        return ", being too noisy" + (f", among them {row.metric} of {row.cell}" if row else "")
    return f", among them {row.metric} of {row.cell}, {row.note}" if row else ""


def _figures(number: int) -> str:
    return "1 figure is" if number == 1 else f"{number} figures are"


def _joined(words: Collection[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
