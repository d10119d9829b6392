"""Verdict on a run: against the earlier runs of its key, and against the figures of field reports, the forecast, the
expected figures and the evidence of its recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_spark.bench import compare, evidence, key, references
from vllm_spark.bench.compare import JUDGED, Comparison, Row
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import Figure
from vllm_spark.recipe import loader
from vllm_spark.recipe.loader import Recipe

FOLDER = paths.REPORTS / "bench"
# The fault of answers that are no text. Speed without it may be that of a broken server.
GARBAGE = "garbage"
State = Literal["good", "worse", "worthless", "unknown"]
# Figures that show how even a stream is, and how many times as long is told.
GAPS, LONGER = ("gap_p99", "longest_gap"), 3.0
# A repetition of a cell in a soak. How many a run has depends on its speed.
REPETITION = re.compile(r" #\d+$")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict. `state` is unknown if a leading figure could not be judged. `baseline` is the file of the last
    earlier run, or empty; `earlier` the number of earlier runs."""

    state: State
    sentence: str
    baseline: str
    earlier: int
    changed: tuple[str, ...]
    before: tuple[Row, ...]
    reported: tuple[Row, ...]
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


@dataclass(frozen=True, slots=True)
class _Judged:
    """A run, what its figures are compared with, and the rows that decide.

    A change since the earlier runs counts, whatever the recipe says. Of the other references the first one that knows a
    figure decides on it.
    """

    run: Evidence
    before: Reference
    others: Sequence[Reference]

    def deciding(self) -> list[tuple[str, Row]]:
        """Return the rows that decide, each with the name of its reference."""
        first: dict[tuple[str, str], tuple[str, Row]] = {}
        for reference in self.others:
            for row in reference.rows:
                if row.judgement in JUDGED:
                    first.setdefault((row.cell, row.metric), (reference.name, row))
        return [*((self.before.name, row) for row in self.before.rows), *first.values()]

    def unjudged(self) -> list[tuple[str, str]]:
        """Return the cell and the metric of each leading figure that nothing judged."""
        judged = {(row.cell, row.metric) for _, row in self.deciding() if row.judgement in JUDGED}
        return [one for one in _leading_figures(self.run) if one not in judged]

    def state(self) -> State:
        """Return the state. A run is good if each figure that its cells are measured for was judged."""
        if any(compare.worthless(cell) for cell in self.run.cells.values()):
            return "worthless"
        if any(row.judgement == "worse" for _, row in self.deciding()):
            return "worse"
        return "good" if self.run.cells and not self.unjudged() else "unknown"


def verdict(run: Evidence, history: Sequence[Evidence] = ()) -> Verdict:
    """Return the verdict on a run. `history` has the earlier runs, the oldest first; without one its recipe decides."""
    loaded, notes = recipe_of(run), list(run.notes)
    if loaded is None:
        notes.append(f"recipe {run.run['subject']['recipe'] or 'unknown'} is not in the catalogue: no forecast")
    if not history:
        notes.append("no run before with the same key")
    compared = compare.compare(history, run)
    reported, forecast, expected = (
        tuple(rows(loaded.document, run)) if loaded else ()
        for rows in (references.reported_rows, references.forecast_rows, references.expected_rows)
    )
    measured = _evidence_rows(loaded, run, notes) if loaded else ()
    if not compared.comparable:
        notes.append("the keys differ: what is worse may be the effect of the change")
    notes += _warnings(run)
    differing = "" if compared.comparable else ", ".join(compared.changed)
    names = (f"the runs before {differing}".rstrip(), "as before")
    judged = _Judged(
        run,
        Reference(*names, compared.rows),
        (
            Reference("the field reports", "as in the field reports", reported),
            Reference("the forecast", "as forecast", forecast),
            Reference("the recipe", "as the recipe expects", expected),
            Reference("the recipe's evidence", "as in the recipe's evidence", measured),
        ),
    )
    state = judged.state()
    garbage = f"; garbage accepted in {cells}" if (cells := accepted(run)) else ""
    sentences = {
        "worthless": lambda: _worthless(run),
        "worse": lambda: _worse(judged, compared.causes),
        "good": lambda: _good(judged, differing),
        "unknown": lambda: _unknown(judged),
    }
    return Verdict(
        state=state,
        sentence=f"{state}: {sentences[state]()}{_gaps(compared.rows)}{garbage}.",
        baseline=str(history[-1].file) if history else "",
        earlier=len(history),
        changed=compared.changed,
        before=compared.rows,
        reported=reported,
        forecast=forecast,
        expected=expected,
        evidence=measured,
        causes=compared.causes,
        notes=tuple(notes),
    )


def _warnings(run: Evidence) -> Iterator[str]:
    """Yield the warnings of measured cells, then their leading figures that are too noisy to use."""
    measured = {name: cell for name, cell in run.cells.items() if not compare.worthless(cell)}
    for name, cell in measured.items():
        if text := compare.faults(cell):
            yield f"{name}: warning, {text}"
    for name, cell in measured.items():
        for metric in leading_metrics(cell["cell"]):
            if metric in cell["figures"] and compare.too_noisy(cell["figures"][metric]):
                yield f"{name}: {_shown(metric, cell['figures'][metric])}"


def _leading_figures(run: Evidence) -> list[tuple[str, str]]:
    """Return the cell and the metric of each leading figure, without the repetitions of a soak."""
    once = {name: cell for name, cell in run.cells.items() if not REPETITION.search(name)}
    return [(name, metric) for name, cell in once.items() for metric in leading_metrics(cell["cell"])]


def _evidence_rows(loaded: Recipe, run: Evidence, notes: list[str]) -> tuple[Row, ...]:
    """Return the rows against the recipe's evidence. A file of it that is broken is a note: it says nothing here."""
    try:
        return tuple(references.evidence_rows(loaded, run, paths.RECIPES))
    except RefusedError as error:
        notes += [f"the recipe's evidence is not compared: {refusal.what}" for refusal in error.refusals]
        return ()


def earlier(run: Evidence, folder: Path) -> list[Evidence]:
    """Return the older runs of a folder that `run` is judged by, the oldest first: those of its profile and its key.

    Without any they are the last ones of its profile and its place under another key, so that an upgrade is judged. A
    run that its owner accepted ends the memory of those before it.
    """
    older = evidence.oldest_first(
        other
        for other in readable(folder)
        if other.run["id"] != run.run["id"]
        and other.run["started"] < run.run["started"]
        and other.run["profile"].get("name") == run.run["profile"].get("name")
    )
    alike = [other for other in older if key.comparable(other, run)]
    if not alike:
        here = [other for other in older if key.same_place(other, run)]
        alike = [other for other in here if key.comparable(other, here[-1])]
    accepted_at = max((number for number, other in enumerate(alike) if other.accepted), default=0)
    return alike[accepted_at:]


def closing(path: Path) -> list[str]:
    """Return the last lines of a run: its verdict by the earlier runs of its folder, its file, the next command."""
    run = evidence.read(path)
    shown = os.path.relpath(path)
    sentence = verdict(run, earlier(run, path.parent)).sentence
    return [sentence, f"evidence: {shown}", f"Next: vllm-spark bench report {shown}"]


def latest(folder: Path, deployment: str) -> str:
    """Return a line about the newest run of a deployment, or an empty text without one."""
    own = [run for run in readable(folder) if run.run["subject"]["deployment"] == deployment]
    run = max(own, key=lambda each: each.run["started"], default=None)
    if run is None:
        return ""
    state = verdict(run, earlier(run, folder)).state
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


def recipe_document(run: Evidence) -> Document | None:
    """Return the document of the recipe of a run, or None."""
    recipe = recipe_of(run)
    return recipe.document if recipe else None


def compared_state(result: Comparison) -> State:
    """Return the state of a comparison alone."""
    judgements = {row.judgement for row in result.rows}
    if "worthless" in judgements or "worse" in judgements:
        return "worthless" if "worthless" in judgements else "worse"
    leading = {row.judgement for row in result.rows if row.leading}
    return "good" if leading and leading <= JUDGED else "unknown"


# The sentence is the first thing that an owner reads. It begins with the state.


def _good(judged: _Judged, differing: str) -> str:
    """Return the sentence of a run without a loss. `differing` has the parts of the key that differ."""
    counts = [text for reference in (judged.before, *judged.others) if (text := _counts(reference))]
    widths = [row.band for row in judged.before.rows if row.judgement == "same" and row.band]
    if widths:
        counts[0] += f", within {max(widths):.0%}".replace("%", " %")
    return "; ".join([*counts, *([f"since then {differing}"] if differing else [])])


def _gaps(rows: Iterable[Row]) -> str:
    """Return a text for the first cell whose gaps between tokens are longer by LONGER; they are not judged."""
    for row in rows:
        if row.metric in GAPS and row.judgement == "shown" and (row.ratio or 0.0) >= LONGER:
            return f"; the gaps between tokens of {row.cell} are {row.ratio:.0f} times as long ({row.metric})"
    return ""


def _unknown(judged: _Judged) -> str:
    """Return the sentence of a run of which something could not be judged."""
    missing, all_ = judged.unjudged(), _leading_figures(judged.run)
    if not judged.deciding():
        return "there is no earlier run, report, forecast or expected figure to judge by"
    reason = f"{len(missing)} of {len(all_)} leading figures could not be judged"
    if better := [row for _, row in judged.deciding() if row.judgement == "better"]:
        reason += f"; {_figures(len(better))} better"
    rows = [row for _, row in judged.deciding() if (row.cell, row.metric) in missing and row.note]
    if rows:
        return f"{reason}; {rows[0].metric} of {rows[0].cell}, {rows[0].note}"
    return "; ".join([reason, *(f"{metric} of {cell}" for cell, metric in missing[:1])])


def _worse(judged: _Judged, causes: Mapping[str, str]) -> str:
    """Return the sentence of a run with a loss: its first row that is worse, and the cause."""
    name, row = next((name, row) for name, row in judged.deciding() if row.judgement == "worse")
    change = f" ({row.ratio - 1:+.1%} against {name})".replace("%", " %") if row.ratio is not None else ""
    found = [row.note] if row.note.startswith(compare.DRIFT) else []
    why = causes.get(row.cell) or next(iter(causes.values()), "cause unknown")
    return f"{row.metric} of {row.cell} is {row.new:.4g} {row.unit}{change}; {'; '.join([*found, why])}"


def accepted(run: Evidence) -> str:
    """Return the number of cells whose garbage the operator accepted: `7 of 8 cells`; empty without any."""
    measured = [cell for cell in run.cells.values() if not compare.worthless(cell)]
    garbage = sum(any(fault["id"] == GARBAGE for fault in cell["faults"]) for cell in measured)
    return f"{garbage} of {len(measured)} cells" if garbage else ""


def _worthless(run: Evidence) -> str:
    """Return the sentence of a run with cells that do not count."""
    spoiled = [cell for cell in run.cells.values() if compare.worthless(cell)]
    first = spoiled[0]
    verb = "has" if len(spoiled) == 1 else "have"
    reason = compare.faults(first) or first["state"]
    return f"{len(spoiled)} of {len(run.cells)} cells {verb} no figures that count; {first['cell']['id']}: {reason}"


def _counts(reference: Reference) -> str:
    """Return how many figures are as the reference and how many better; empty without any."""
    same, better = (sum(row.judgement == kind for row in reference.rows) for kind in ("same", "better"))
    if not same:
        return f"{_figures(better)} better than {reference.name}" if better else ""
    return f"{_figures(same)} {reference.equal}" + (f" and {better} better" if better else "")


def _figures(number: int) -> str:
    return "1 figure is" if number == 1 else f"{number} figures are"
