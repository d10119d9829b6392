"""Verdict on a run: against the earlier runs of its key, and against the figures of field reports, the forecast, the
expected figures and the evidence of its recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from vllm_spark.bench import compare, evidence, key, references
from vllm_spark.bench.compare import JUDGED, Comparison, Row
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
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


# By their member in JSON: what a loss is measured against, and how "2 figures are …" ends. The first one that knows a
# figure decides on it. A change since the earlier runs counts, whatever the recipe says.
REFERENCES: Mapping[str, tuple[str, str, Callable[[Recipe, Evidence], Iterator[Row]]]] = {
    "reported": (
        "the field reports",
        "as in the field reports",
        lambda recipe, run: references.reported_rows(recipe.document, run),
    ),
    "forecast": ("the forecast", "as forecast", lambda recipe, run: references.forecast_rows(recipe.document, run)),
    "expected": (
        "the recipe",
        "as the recipe expects",
        lambda recipe, run: references.expected_rows(recipe.document, run),
    ),
    "evidence": ("the recipe's evidence", "as in the recipe's evidence", references.evidence_rows),
}


@dataclass(frozen=True)
class Verdict:
    """A run, the earlier ones that it is judged by, the oldest first, and the rows by each of REFERENCES."""

    run: Evidence
    history: Sequence[Evidence]
    compared: Comparison
    others: Mapping[str, tuple[Row, ...]]
    notes: tuple[str, ...]

    @property
    def baseline(self) -> str:
        """The file of the last earlier run, or an empty text."""
        return str(self.history[-1].file) if self.history else ""

    @cached_property
    def deciding(self) -> list[tuple[str, Row]]:
        """The rows that decide, each with the name of its reference."""
        first: dict[tuple[str, str], tuple[str, Row]] = {}
        for name, rows in self.others.items():
            for row in rows:
                if row.judgement in JUDGED:
                    first.setdefault((row.cell, row.metric), (REFERENCES[name][0], row))
        before = f"the runs before {self.differing}".rstrip()
        return [*((before, row) for row in self.compared.rows), *first.values()]

    @property
    def differing(self) -> str:
        """The parts of the key that differ, if that matters."""
        return "" if self.compared.comparable else ", ".join(self.compared.changed)

    @cached_property
    def unjudged(self) -> list[tuple[str, str]]:
        """The cell and the metric of each leading figure that nothing judged."""
        judged = {(row.cell, row.metric) for _, row in self.deciding if row.judgement in JUDGED}
        return [one for one in _leading_figures(self.run) if one not in judged]

    @cached_property
    def state(self) -> State:
        """The state. A run is good if each figure that its cells are measured for was judged."""
        if any(compare.worthless(cell) for cell in self.run.cells.values()):
            return "worthless"
        if any(row.judgement == "worse" for _, row in self.deciding):
            return "worse"
        return "good" if self.run.cells and not self.unjudged else "unknown"

    @property
    def sentence(self) -> str:
        """The first thing that an owner reads. It begins with the state."""
        told = {"worthless": _worthless, "worse": _worse, "good": _good, "unknown": _unknown}[self.state](self)
        garbage = f"; {GARBAGE} accepted in {cells}" if (cells := accepted(self.run)) else ""
        return f"{self.state}: {told}{_gaps(self.compared.rows)}{garbage}."

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "sentence": self.sentence,
            "baseline": self.baseline,
            "earlier": len(self.history),
            "changed": self.compared.changed,
            "before": [asdict(row) for row in self.compared.rows],
            **{name: [asdict(row) for row in rows] for name, rows in self.others.items()},
            "causes": self.compared.causes,
            "notes": self.notes,
        }


def verdict(run: Evidence, history: Sequence[Evidence] = ()) -> Verdict:
    """Return the verdict on a run. `history` has the earlier runs, the oldest first; without one its recipe decides."""
    loaded, notes, others = recipe_of(run), list(run.notes), dict[str, tuple[Row, ...]]()
    if loaded is None:
        notes.append(f"recipe {run.run['subject']['recipe'] or 'unknown'} is not in the catalogue: no forecast")
    if not history:
        notes.append("no run before with the same key")
    for name, (called, _, rows) in REFERENCES.items():
        try:
            others[name] = tuple(rows(loaded, run)) if loaded else ()
        except RefusedError as error:  # a broken file of it says nothing here
            others[name] = ()
            notes += [f"{called} is not compared: {refusal.what}" for refusal in error.refusals]
    compared = compare.compare(history, run)
    if not compared.comparable:
        notes.append("the keys differ: what is worse may be the effect of the change")
    return Verdict(run, history, compared, others, (*notes, *_warnings(run)))


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


def compared_state(result: Comparison) -> State:
    """Return the state of a comparison alone."""
    judgements = {row.judgement for row in result.rows}
    if "worthless" in judgements or "worse" in judgements:
        return "worthless" if "worthless" in judgements else "worse"
    leading = {row.judgement for row in result.rows if row.leading}
    return "good" if leading and leading <= JUDGED else "unknown"


def _good(judged: Verdict) -> str:
    """Return the sentence of a run without a loss."""
    counts = [_counts("the runs before", "as before", judged.compared.rows)]
    widths = [row.band for row in judged.compared.rows if row.judgement == "same" and row.band]
    if widths:
        counts[0] += f", within {max(widths):.0%}".replace("%", " %")
    counts += [_counts(*REFERENCES[name][:2], rows) for name, rows in judged.others.items()]
    return "; ".join(filter(None, [*counts, f"since then {judged.differing}" if judged.differing else ""]))


def _gaps(rows: Iterable[Row]) -> str:
    """Return a text for the first cell whose gaps between tokens are longer by LONGER; they are not judged."""
    for row in rows:
        if row.metric in GAPS and row.judgement == "shown" and (row.ratio or 0.0) >= LONGER:
            return f"; the gaps between tokens of {row.cell} are {row.ratio:.0f} times as long ({row.metric})"
    return ""


def _unknown(judged: Verdict) -> str:
    """Return the sentence of a run of which something could not be judged."""
    missing, all_ = judged.unjudged, _leading_figures(judged.run)
    if not judged.deciding:
        return "there is no earlier run, report, forecast or expected figure to judge by"
    reason = f"{len(missing)} of {len(all_)} leading figures could not be judged"
    if better := sum(row.judgement == "better" for _, row in judged.deciding):
        reason += f"; {_figures(better)} better"
    noted = [row for _, row in judged.deciding if (row.cell, row.metric) in missing and row.note]
    examples = [f"{row.metric} of {row.cell}, {row.note}" for row in noted]
    return "; ".join([reason, *[*examples, *(f"{metric} of {cell}" for cell, metric in missing)][:1]])


def _worse(judged: Verdict) -> str:
    """Return the sentence of a run with a loss: its first row that is worse, and the cause."""
    name, row = next((name, row) for name, row in judged.deciding if row.judgement == "worse")
    change = f" ({row.ratio - 1:+.1%} against {name})".replace("%", " %") if row.ratio is not None else ""
    found, causes = [row.note] if row.note.startswith(compare.DRIFT) else [], judged.compared.causes
    why = causes.get(row.cell) or next(iter(causes.values()), "cause unknown")
    return f"{row.metric} of {row.cell} is {row.new:.4g} {row.unit}{change}; {'; '.join([*found, why])}"


def accepted(run: Evidence) -> str:
    """Return the number of cells whose garbage the operator accepted: `7 of 8 cells`; empty without any."""
    measured = [cell for cell in run.cells.values() if not compare.worthless(cell)]
    garbage = sum(any(fault["id"] == GARBAGE for fault in cell["faults"]) for cell in measured)
    return f"{garbage} of {len(measured)} cells" if garbage else ""


def _worthless(judged: Verdict) -> str:
    """Return the sentence of a run with cells that do not count."""
    spoiled = [cell for cell in judged.run.cells.values() if compare.worthless(cell)]
    first, verb = spoiled[0], "has" if len(spoiled) == 1 else "have"
    reason = compare.faults(first) or first["state"]
    return (
        f"{len(spoiled)} of {len(judged.run.cells)} cells {verb} no figures that count; {first['cell']['id']}: {reason}"
    )


def _counts(name: str, equal: str, rows: Sequence[Row]) -> str:
    """Return how many figures are as the reference and how many better; empty without any."""
    same, better = (sum(row.judgement == kind for row in rows) for kind in ("same", "better"))
    if not same:
        return f"{_figures(better)} better than {name}" if better else ""
    return f"{_figures(same)} {equal}" + (f" and {better} better" if better else "")


def _figures(number: int) -> str:
    return "1 figure is" if number == 1 else f"{number} figures are"
