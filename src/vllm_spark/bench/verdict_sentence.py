"""The sentence of a verdict: the first thing that an owner reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.bench import compare
from vllm_spark.bench.compare import Row
from vllm_spark.node.bench.records import CellRecord


@dataclass(frozen=True, slots=True)
class Reference:
    """Rows of one reference. `name` is what a loss is measured against; `equal` ends "2 figures are …"."""

    name: str
    equal: str
    rows: Sequence[Row]


def good(references: Sequence[Reference], differing: Collection[str]) -> str:
    """Return the sentence of a run without a loss. `differing` has the names of the parts of the key that differ."""
    judged = [text for reference in references if (text := _counts(reference))]
    keys = f" The two runs differ in {_joined(differing)}." if differing else ""
    return f"good: {'; '.join([*judged, *_missing(references)])}.{keys}"


def unknown(references: Sequence[Reference]) -> str:
    """Return the sentence of a run that nothing could judge."""
    reason = "there is no earlier run, forecast or expected figure to judge by"
    return f"unknown: {'; '.join([reason, *_missing(references)])}."


def worse(references: Sequence[Reference], causes: Mapping[str, str]) -> str:
    """Return the sentence of a run with a loss: its first row that is worse, and the cause."""
    lost = [(each.name, row) for each in references for row in each.rows if row.judgement == "worse"]
    # What the cell is measured for comes before what follows from it.
    name, row = next((pair for pair in lost if pair[1].leading), lost[0])
    change = f" ({row.ratio - 1:+.1%} against {name})".replace("%", " %") if row.ratio is not None else ""
    why = causes.get(row.cell) or next(iter(causes.values()), "cause unknown")
    return f"worse: {row.metric} of {row.cell} is {row.new:.4g} {row.unit}{change}; {why}."


def worthless(spoiled: Sequence[CellRecord], cells: int) -> str:
    """Return the sentence of a run with cells that do not count. `cells` is the number of all cells."""
    first = spoiled[0]
    verb = "has" if len(spoiled) == 1 else "have"
    reason = compare.faults(first) or first["state"]
    return f"worthless: {len(spoiled)} of {cells} cells {verb} no figures that count; {first['cell']['id']}: {reason}."


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
